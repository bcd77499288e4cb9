package api

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
)

//go:embed page.html
var pageHTML []byte

// page is the status page with the policy that lets exactly its own script and style run.
type page struct {
	html   []byte
	policy string
}

func newPage() page {
	return page{pageHTML, "default-src 'none'; connect-src 'self'; img-src data:; script-src " + sourceHash("script") + "; style-src " + sourceHash("style") +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}
}

// sourceHash is the CSP level 3 hash source of the page's only element of that name.
func sourceHash(element string) string {
	_, rest, _ := bytes.Cut(pageHTML, []byte("<"+element+">"))
	text, _, _ := bytes.Cut(rest, []byte("</"+element+">"))
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (p page) serve(w http.ResponseWriter, _ *http.Request) error {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	w.Write(p.html)
	return nil
}
