package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) completionVerb() *cobra.Command {
	return &cobra.Command{
		Use:       "completion SHELL",
		Short:     "Print a completion script for bash, zsh, fish or powershell",
		Example:   "  scanonce completion bash > /etc/bash_completion.d/scanonce",
		Args:      takes("SHELL"),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.stdout)
			}
			return usage(fmt.Sprintf("cannot write a completion script for %q", args[0]), "write bash, zsh, fish or powershell")
		},
	}
}
