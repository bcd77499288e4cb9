// Package capture turns what a pharmacy scanner sends into a Scan, or refuses it with a reason.
//
// It reads GS1 element strings, GS1 Digital Link URIs, bracketed element strings, EAN/UPC and ITF-14,
// HIBC supplier labels, NDC text, a pharmacy's own Rx labels and the product's command barcodes. It never
// repairs and never guesses: what is wrong is refused, what is unknown is opaque. It is pure: no clock, no
// files but the directory that it is given, no state between scans but a Burst.
package capture
