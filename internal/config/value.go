package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"scanonce/window"
)

// Size is a number of bytes, written as "2GiB".
type Size int64

var units = [...]struct {
	name string
	n    Size
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// String uses the largest unit that gives a whole number.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && s%u.n == 0 {
			return strconv.FormatInt(int64(s/u.n), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// MarshalText writes String's form.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a whole number with the unit B, KiB, MiB, GiB or TiB; without a unit it is bytes.
func (s *Size) UnmarshalText(b []byte) error {
	text, n := string(b), Size(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, n = rest, u.n
			break
		}
	}
	v, err := strconv.ParseInt(strings.TrimSuffix(text, "B"), 10, 64)
	if err != nil || v < 0 || v > math.MaxInt64/int64(n) {
		return fmt.Errorf("cannot read %q as a size: write for example \"2GiB\" or \"512MiB\"", b)
	}
	*s = Size(v) * n
	return nil
}

// formatDuration is Duration.String without the zero parts at the end: "2m", "720h".
func formatDuration(d time.Duration) string {
	s := d.String()
	if rest, ok := strings.CutSuffix(s, "m0s"); ok {
		s = rest + "m"
	}
	if rest, ok := strings.CutSuffix(s, "h0m"); ok {
		s = rest + "h"
	}
	return s
}

// asText writes a value as it stands in an error: quoted and cut.
func asText(v any) string {
	s := fmt.Sprint(v)
	if _, ok := v.(string); ok {
		s = strconv.Quote(s)
	}
	if r := []rune(s); len(r) > 60 {
		s = string(r[:57]) + "..."
	}
	return s
}

// wants says what to write for a key of v's type.
func wants(v reflect.Value) string {
	switch v.Interface().(type) {
	case time.Duration:
		return `write a duration in quotes, for example "500ms", "3s" or "24h"`
	case Size:
		return `write a size in quotes, for example "2GiB" or "512MiB"`
	case window.ScanType:
		return "write one of " + list(typeNames())
	case []string:
		return `write a list of texts, for example ["127.0.0.1:6379"]`
	}
	switch v.Kind() {
	case reflect.Bool:
		return "write true or false, without quotes"
	case reflect.Int:
		return "write a whole number, without quotes"
	case reflect.Float64:
		return "write a number, without quotes, for example 0.8"
	}
	return "write a text in quotes"
}

func typeNames() []string {
	var n []string
	for _, s := range window.ScanTypes() {
		n = append(n, s.String())
	}
	return n
}

var errType = errors.New("wrong type")

// assign puts a TOML value into a field.
func assign(f reflect.Value, v any) error {
	switch p := f.Addr().Interface().(type) {
	case *time.Duration:
		s, ok := v.(string)
		if !ok {
			return errType
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			return errType
		}
		*p = d
		return nil
	case *Size:
		switch v := v.(type) {
		case int64:
			*p = Size(v)
			return nil
		case string:
			return p.UnmarshalText([]byte(v))
		}
		return errType
	case *window.ScanType:
		s, ok := v.(string)
		if !ok {
			return errType
		}
		return p.UnmarshalText([]byte(s))
	case *[]string:
		in, ok := v.([]any)
		if !ok {
			return errType
		}
		out := make([]string, len(in))
		for i := range in {
			if out[i], ok = in[i].(string); !ok {
				return errType
			}
		}
		*p = out
		return nil
	case *float64:
		switch v := v.(type) {
		case int64:
			*p = float64(v)
			return nil
		case float64:
			*p = v
			return nil
		}
		return errType
	case *int:
		n, ok := v.(int64)
		if !ok {
			return errType
		}
		*p = int(n)
		return nil
	case *bool:
		b, ok := v.(bool)
		if !ok {
			return errType
		}
		*p = b
		return nil
	case *string:
		s, ok := v.(string)
		if !ok {
			return errType
		}
		*p = s
		return nil
	}
	return fmt.Errorf("cannot set a %s", f.Type())
}

// fromText turns the text of an environment variable or of --set into the TOML value that f takes. Lists
// are separated by commas, or written as in the file.
func fromText(f reflect.Value, s string) any {
	switch f.Interface().(type) {
	case time.Duration, Size, window.ScanType, string:
		return s
	case []string:
		out := []any{}
		if strings.HasPrefix(strings.TrimSpace(s), "[") {
			var doc struct{ V []any }
			if _, err := toml.Decode("V = "+s, &doc); err != nil {
				return s // a text is no list: the caller's error says what to write
			}
			return append(out, doc.V...)
		}
		for _, e := range strings.Split(s, ",") {
			if e = strings.TrimSpace(e); e != "" {
				out = append(out, e)
			}
		}
		return out
	}
	var v any
	var err error
	switch f.Kind() {
	case reflect.Bool:
		v, err = strconv.ParseBool(s)
	case reflect.Int:
		v, err = strconv.ParseInt(s, 10, 64)
	case reflect.Float64:
		v, err = strconv.ParseFloat(s, 64)
	}
	if err != nil {
		return s
	}
	return v
}

// toTOML writes a field's value as in the file.
func toTOML(f reflect.Value) string {
	switch v := f.Interface().(type) {
	case time.Duration:
		return quote(formatDuration(v))
	case Size:
		return quote(v.String())
	case window.ScanType:
		return quote(v.String())
	case []string:
		q := make([]string, len(v))
		for i := range v {
			q[i] = quote(v[i])
		}
		return "[" + strings.Join(q, ", ") + "]"
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		return quote(v)
	}
	return fmt.Sprint(f.Interface())
}

// quote writes a TOML string: a literal one where that is easier to read, for patterns.
func quote(s string) string {
	plain := true
	for _, r := range s {
		if r < ' ' || r == 0x7f || r == '\'' {
			plain = false
		}
	}
	if plain && strings.ContainsAny(s, `\"`) {
		return "'" + s + "'"
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// toJSON is a field's value as encoding/json should write it.
func toJSON(f reflect.Value) any {
	switch v := f.Interface().(type) {
	case time.Duration:
		return formatDuration(v)
	}
	return f.Interface()
}
