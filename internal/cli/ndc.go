package cli

import (
	"archive/zip"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"scanonce/capture"
	"scanonce/window"
)

func (a *app) ndcImportVerb() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "import FILE…",
		Short: "Make the index of an NDC directory",
		Long: `Make the index of an NDC directory, which decides where the hyphens of a ten-digit NDC are. The files, in any
order, are the FDA's package.txt and product.txt or the ndctext.zip that holds them, or lists of one hyphenated
NDC a line; each is known by its first line. Only the packages decide: product.txt is checked and counted.

Lines that cannot be used are skipped and counted, the first of each file are told. A file without any usable
line, or without the column of the NDC, is an error, and nothing is written then. The index is replaced as a
whole: an agent that reads it meanwhile has the old one or the new one. It takes the new one at its next start
or reload.

The index is dated as the oldest of the files was last changed, in a zip as the zip says of it, since a directory
is as fresh as its oldest part. The dates within the files are when packages came to the market, some in the
future, and do not tell when the list was made. So keep the time of a file that you copy (cp -p, curl -R).`,
		Example: `  scanonce ndc import ndctext.zip
  scanonce ndc import package.txt product.txt -o /var/lib/scanonce/ndc.idx`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return takes("FILE…")(cmd, args)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, files []string) error {
			out, err := a.indexPath(out, files)
			if err != nil {
				return err
			}
			im := ndcImport{app: a}
			for _, name := range files {
				if err := im.file(name); err != nil {
					return usage(fmt.Sprintf("cannot import %s: %v", name, err), "name the FDA's package.txt, product.txt or ndctext.zip, or a list of one hyphenated NDC a line; nothing was written")
				}
			}
			d, err := im.Directory()
			if err != nil {
				return usage(err.Error(), "name package.txt too; nothing was written")
			}
			if err := replaceIndex(out, d.AppendIndex(nil, im.dated)); err != nil {
				return usage(fmt.Sprintf("cannot write the index %s: %v", out, err), "name a file with -o in a folder that exists, that you may write to and that has space; an index from before stays as it was")
			}
			return a.print(struct {
				Packages int `json:"packages"` // usable lines
				Products int `json:"products"` // usable lines
				Skipped  int `json:"skipped"`  // other lines
				Written  int `json:"written"`  // packages of the index, each once
			}{im.Packages, im.Products, im.Skipped, d.Len()},
				fmt.Sprintf("packages=%d products=%d skipped=%d written=%d\n%s is dated %s; an agent that runs takes it at a reload: systemctl reload scanonce\n",
					im.Packages, im.Products, im.Skipped, d.Len(), out, im.dated))
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "write the index to `FILE` (default: ndc.directory of the configuration)")
	return cmd
}

// replaceIndex writes the index as a whole or not at all. Nothing in it is secret, and the agent's user must
// read what another one imports, so its mode is not that of the umask or of the file before.
func replaceIndex(name string, index []byte) error {
	f, err := renameio.NewPendingFile(name, renameio.WithStaticPermissions(0o644))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if _, err := f.Write(index); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// indexPath is where the index goes. It must not replace what it is made of.
func (a *app) indexPath(out string, files []string) (string, error) {
	if out == "" {
		cfg, err := a.loadBasics()
		if err != nil {
			return "", err
		}
		if out = cfg.NDC.Directory; out == "" {
			return "", usage("cannot tell where the index goes: ndc.directory is not set", "name the file with -o FILE, or set ndc.directory in the configuration")
		}
	}
	if old, err := os.Stat(out); err == nil {
		if !old.Mode().IsRegular() { // to root, /dev/null would give way to the index
			return "", usage(fmt.Sprintf("cannot write the index to %s: it is no regular file, but a folder or a device", out), "name a file with -o")
		}
		for _, name := range files {
			if in, err := os.Stat(name); err == nil && os.SameFile(old, in) {
				return "", usage(fmt.Sprintf("cannot write the index over %s, which it is made of", name), "name another file with -o, and the same as ndc.directory in the configuration")
			}
		}
	}
	return out, nil
}

// ndcImport reads the files of an import.
type ndcImport struct {
	capture.DirectoryImport
	app   *app
	dated window.UTC // 0 before the first file
}

// toldLines is how many bad lines of a file are told.
const toldLines = 5

// file takes one file, or the files of the FDA in a zip.
func (im *ndcImport) file(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return errors.New(reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return errors.New(reason(err))
	}
	if info.IsDir() {
		return errors.New("it is a folder")
	}
	r := bufio.NewReader(f)
	if head, _ := r.Peek(4); string(head) != "PK\x03\x04" {
		return im.text(name, r, info.ModTime())
	}
	if !info.Mode().IsRegular() {
		return errors.New("a zip must be a regular file")
	}
	z, err := zip.NewReader(f, info.Size())
	if err != nil {
		return err
	}
	found := false
	for _, e := range z.File {
		base := strings.ToLower(path.Base(e.Name))
		if base != "package.txt" && base != "product.txt" {
			continue
		}
		found = true
		if err := im.entry(name, base, e, info.ModTime()); err != nil {
			return fmt.Errorf("%s: %w", base, err)
		}
	}
	if !found {
		return errors.New("the zip holds neither package.txt nor product.txt")
	}
	return nil
}

func (im *ndcImport) entry(name, base string, e *zip.File, fallback time.Time) error {
	r, err := e.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	at := e.Modified
	if at.Unix() <= 0 { // the zip does not say
		at = fallback
	}
	return im.text(name+"/"+base, r, at)
}

// text takes text in one of the layouts, and tells of its first bad lines.
func (im *ndcImport) text(name string, r io.Reader, changed time.Time) error {
	var wrong []line
	skipped := im.Skipped
	err := im.Read(r, func(n int, why string) {
		if len(wrong) < toldLines {
			wrong = append(wrong, line{detail: fmt.Sprintf("cannot use line %d of %s: %s", n, name, why)})
		}
	})
	if more := im.Skipped - skipped - len(wrong); more > 0 {
		wrong = append(wrong, line{detail: fmt.Sprintf("cannot use %d more lines of %s", more, name)})
	}
	im.app.report(&failure{kind: "skipped", lines: wrong}, im.app.json)
	if at := window.FromTime(changed); im.dated == 0 || at < im.dated {
		im.dated = at
	}
	return err
}

// reason is the cause of a file's error, without the name, which is told already.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
