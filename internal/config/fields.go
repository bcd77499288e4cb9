package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"scanonce/window"
)

// field is one key of the configuration: a scalar or a list of texts.
type field struct {
	path   string // "spool.max_bytes", "scanner[0].feedback.good"
	name   string // last part
	tag    reflect.StructTag
	reload bool
	value  reflect.Value // addressable
}

// section is a table of the file, with its keys in the order of the reference.
type section struct {
	path, doc string
	list      string // for a list of tables, the key that names an element
	reload    bool
	fields    []field
}

// listNames maps each list of tables to the key that names its elements.
func listNames() map[string]string { return map[string]string{"scanner": "id", "rx_profile": "name"} }

// sections enumerates the tables and keys of c. An element of a list is a section of its own.
func (c *Config) sections() []section {
	var out []section
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		ft := v.Type().Field(i)
		if !ft.IsExported() {
			continue
		}
		name, reload := ft.Tag.Get("toml"), ft.Tag.Get("reload") != ""
		switch p := v.Field(i).Addr().Interface().(type) {
		case *window.Policies:
			for _, t := range window.ScanTypes() {
				path := name + "." + t.String()
				out = append(out, section{path: path, doc: ft.Tag.Get("doc"), reload: reload, fields: []field{
					{path: path + ".width", name: "width", reload: reload, value: reflect.ValueOf(&p[t].Width).Elem(),
						tag: `range:"1ms:24h" doc:"Length of a window; a movement and its retransmissions fit into it."`},
					{path: path + ".guard", name: "guard", reload: reload, value: reflect.ValueOf(&p[t].Guard).Elem(),
						tag: `range:"1ms:24h" doc:"Time on both sides of a window's boundary in which a second key catches pairs that straddle it; at most half the width."`},
				}})
			}
		case *[]Scanner, *[]RxProfile:
			for j := range v.Field(i).Len() {
				path := fmt.Sprintf("%s[%d]", name, j)
				out = append(out, section{path: path, doc: ft.Tag.Get("doc"), list: listNames()[name], reload: reload,
					fields: structFields(path, reload, v.Field(i).Index(j))})
			}
		default:
			out = append(out, section{path: name, doc: ft.Tag.Get("doc"), reload: reload,
				fields: structFields(name, reload, v.Field(i))})
		}
	}
	return out
}

func structFields(path string, reload bool, v reflect.Value) []field {
	var out []field
	for i := range v.NumField() {
		ft := v.Type().Field(i)
		name := ft.Tag.Get("toml")
		r := reload || ft.Tag.Get("reload") != ""
		if ft.Type.Kind() == reflect.Struct {
			out = append(out, structFields(path+"."+name, r, v.Field(i))...)
			continue
		}
		out = append(out, field{path: path + "." + name, name: name, tag: ft.Tag, reload: r, value: v.Field(i)})
	}
	return out
}

// fields maps each key's path to the key.
func (c *Config) fields() map[string]field {
	m := map[string]field{}
	for _, s := range c.sections() {
		for _, f := range s.fields {
			m[f.path] = f
		}
	}
	return m
}

// prototype has one element in each list, so that its keys are all that exist.
func prototype() *Config {
	c := Default()
	c.Scanners = []Scanner{DefaultScanner()}
	c.RxProfiles = []RxProfile{{}}
	return c
}

var element = regexp.MustCompile(`\[\d+\]`)

// known lists every key as one writes it, "scanner.feedback.good" without an element's number.
func known() []string {
	var out []string
	for _, s := range prototype().sections() {
		for _, f := range s.fields {
			out = append(out, element.ReplaceAllString(f.path, ""))
		}
	}
	return out
}

// display names a key of a list element by the element's own name, if it has one.
func (c *Config) display(path string) string {
	loc := element.FindStringIndex(path)
	if loc == nil {
		return path
	}
	var i int
	if _, err := fmt.Sscanf(path[loc[0]:loc[1]], "[%d]", &i); err != nil {
		return path
	}
	name, list, rest := "", path[:loc[0]], path[loc[1]:]
	switch {
	case list == "scanner" && i < len(c.Scanners):
		name = c.Scanners[i].ID
	case list == "rx_profile" && i < len(c.RxProfiles):
		name = c.RxProfiles[i].Name
	}
	if !nameRE.MatchString(name) {
		return fmt.Sprintf("%s number %d%s", list, i+1, strings.Replace(rest, ".", ", ", 1))
	}
	return list + "." + name + rest
}
