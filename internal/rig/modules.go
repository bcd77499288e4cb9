package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// kernelModule is a module to load.
type kernelModule struct {
	name    string
	options string // "num=4"
	path    string // of its file on this machine
}

// findModules finds the modules of a kernel's folder and those that they depend on, in an order in which they can
// be loaded. What is built into the kernel is left out. Each name may be followed by options.
func findModules(dir string, names []string) ([]kernelModule, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(d.Name(), ".ko"); ok && err == nil {
			files[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	builtin, err := builtinModules(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	var out []kernelModule
	done := map[string]bool{}
	var add func(name, options string) error
	add = func(name, options string) error {
		if done[name] || builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := files[name]
		if !ok {
			return fmt.Errorf("cannot find the module %s below %s: the kernel's package must have it, uncompressed", name, dir)
		}
		depends, err := dependencies(path)
		if err != nil {
			return err
		}
		for _, d := range depends {
			if err := add(d, ""); err != nil {
				return err
			}
		}
		out = append(out, kernelModule{name, options, path})
		return nil
	}
	for _, n := range names {
		name, options, _ := strings.Cut(n, " ")
		if err := add(name, options); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// moduleName is the name by which the kernel knows a module: files may have hyphens.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

func builtinModules(path string) (map[string]bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]bool{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		out[moduleName(strings.TrimSuffix(filepath.Base(s.Text()), ".ko"))] = true
	}
	return out, s.Err()
}

// dependencies reads what a module needs from its own note, as depmod(8) does from its symbols.
func dependencies(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the module %s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("cannot read the module %s: %w", path, errors.New("it has no .modinfo"))
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("cannot read the module %s: %w", path, err)
	}
	return parseDependencies(info), nil
}

// parseDependencies reads the section .modinfo: zero-terminated "key=value".
func parseDependencies(info []byte) (out []string) {
	for _, field := range bytes.Split(info, []byte{0}) {
		list, ok := strings.CutPrefix(string(field), "depends=")
		if !ok {
			continue
		}
		for _, name := range strings.Split(list, ",") {
			if name != "" {
				out = append(out, moduleName(name))
			}
		}
	}
	return out
}
