package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
)

var eventKinds = []string{
	"accepted", "committed", "duplicate", "rejected", "not_accepted", "label", "unknown", "mode", "device",
	"online", "operation", "alarm", "gap",
}

func (a *app) tailVerb() *cobra.Command {
	var since string
	var kinds []string
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow the agent's events",
		Long: `Follow the agent's events until interrupted, from now on or from behind the event --since. With --json each
line is the event's data object. If events in between are no longer there, a gap event stands in their place.`,
		Example: "  scanonce tail --kind duplicate --kind rejected",
		Args:    takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, k := range kinds {
				if !slices.Contains(eventKinds, k) {
					return usage(fmt.Sprintf("cannot follow events of kind %q", k), "write one of "+strings.Join(eventKinds, ", "))
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return told(c.Follow(ctx, since, kinds, func(ev api.Event) error {
				line := string(ev.Data)
				if !a.json {
					if line, err = eventText(ev); err != nil {
						return err
					}
				}
				_, err := fmt.Fprintln(a.stdout, line)
				return err
			}))
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "resume behind the event `ID`")
	cmd.Flags().StringSliceVar(&kinds, "kind", nil, "only events of kind `K`; may be repeated")
	return cmd
}

// eventText is one readable line.
func eventText(ev api.Event) (string, error) {
	var e struct {
		At        string    `json:"at"`
		ScannerID string    `json:"scanner_id"`
		ScanType  string    `json:"scan_type"`
		Quantity  int       `json:"quantity"`
		Key       string    `json:"key"`
		Item      *api.Item `json:"item"`
		Of        string    `json:"duplicate_of"`
		State     string    `json:"state"`
		Code      string    `json:"code"`
		Reason    string    `json:"reason"`
		Detail    string    `json:"detail"`
		Hint      string    `json:"hint"`
		Active    *bool     `json:"active"`
	}
	if err := json.Unmarshal(ev.Data, &e); err != nil {
		return "", fmt.Errorf("cannot read the agent's event %s: %w", ev.ID, err)
	}
	words := []string{e.At, fmt.Sprintf("%-12s", ev.Kind)}
	add := func(s string) {
		if s != "" {
			words = append(words, s)
		}
	}
	add(e.ScannerID)
	add(e.ScanType)
	if e.Quantity > 1 {
		add(fmt.Sprintf("quantity %d", e.Quantity))
	}
	if e.Item != nil {
		add(itemText(*e.Item))
	}
	if e.Of != "" {
		add("of " + e.Of)
	}
	add(e.State)
	add(e.Code)
	if e.Active != nil && !*e.Active {
		add("over")
	}
	add(e.Reason)
	add(e.Detail)
	add(e.Hint)
	add(shortKey(e.Key))
	return strings.Join(words, "  "), nil
}

// itemText tells a product as its label does.
func itemText(it api.Item) string {
	var words []string
	switch {
	case it.NDC11 != nil:
		words = append(words, "NDC "+*it.NDC11)
	case it.NDC12 != nil:
		words = append(words, "NDC "+*it.NDC12)
	case it.GTIN != nil:
		words = append(words, "GTIN "+*it.GTIN)
	}
	if it.Lot != nil {
		words = append(words, "lot "+*it.Lot)
	}
	return strings.Join(words, "  ")
}

// shortKey is a key that people can compare at a glance, and that explain takes.
func shortKey(key string) string {
	const prefix, digits = "scan:idem:", 8
	if !strings.HasPrefix(key, prefix) || len(key) <= len(prefix)+digits {
		return key
	}
	return key[:len(prefix)+digits] + "…"
}
