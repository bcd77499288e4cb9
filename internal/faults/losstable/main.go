// Losstable rewrites the table of losses in a document from the results of a fault run.
package main

import (
	"flag"
	"fmt"
	"os"

	"scanonce/internal/faults"
)

func main() {
	from := flag.String("from", "", "results, one JSON object a line")
	into := flag.String("into", "docs/RELIABILITY.md", "document with the marks of the table")
	short := flag.String("short", "README.md", "document with the marks of the table in few rows")
	flag.Parse()
	if err := rewrite(*from, *into, *short); err != nil {
		fmt.Fprintln(os.Stderr, "losstable:", err)
		os.Exit(1)
	}
}

func rewrite(from, into, short string) error {
	f, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("cannot read the results: run make test-faults first: %w", err)
	}
	defer f.Close()
	results, err := faults.Read(f)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("cannot make a table: %s has no results", from)
	}
	for path, table := range map[string]string{into: faults.Table(results), short: faults.Summary(results)} {
		doc, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("cannot read the document: %w", err)
		}
		if doc, err = faults.Replace(doc, table); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, doc, 0o644); err != nil {
			return err
		}
	}
	return nil
}
