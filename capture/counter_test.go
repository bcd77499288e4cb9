package capture

import "testing"

func TestWhatIsNoItemIsRefusedAtTheCounter(t *testing.T) {
	for in, want := range map[string]string{
		"]Q1https://brand.example/leaflet": detailLink, "http://brand.example/": detailLink, "]d1HTTPS://BRAND.EXAMPLE/X": detailLink,
		"512345678900": detailCoupon, "]E00512345678900": detailCoupon, "]E09811234567891": detailCoupon, "]E09911234567898": detailCoupon,
		"]e08110106141416543213500110000310123196000": detailCoupon, "8110106141416543213500110000310123196000": detailCoupon,
	} {
		s := accepted(t, in)
		if r := s.AtCounter(); r.Kind != UnsupportedFormat || r.Detail != want {
			t.Errorf("%s: %v", in, r)
		}
	}
	for _, in := range []string{"300937214106", "]E00300937214106", "]d201003009372141061727113010ALOT", "]Q1https://brand.example/01/00300937214106", "SHELF 12", "]C1420945432", "81101061414165432135X", "SCANONCE-QTY-3", "]E09781234567897", "]E07612345678900"} {
		if r := accepted(t, in).AtCounter(); !r.OK() {
			t.Errorf("%s: %v", in, r)
		}
	}
}
