package capture

import "testing"

func BenchmarkDecode(b *testing.B) {
	dir, err := ParseDirectory([]string{"0093-7214-10", "0406-0512-01"})
	if err != nil {
		b.Fatal(err)
	}
	d, err := NewDecoder(DecoderConfig{Directory: dir, Rx: []RxProfile{{"pms", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`}}})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct{ name, in string }{
		{"DSCSA", "]d20100300937214106" + "21SN000123456\x1d17271130" + "10A1207"},
		{"UPC", "]E00300937214106"},
		{"BareUPC", "300937214106"},
		{"HIBC", "]C0+A999TESTPRD11U"},
		{"DigitalLink", "]Q1https://id.gs1.org/01/00312345678906/10/LOT42/21/SN0001?17=271231"},
		{"Refused", "]d20100300937214107"},
	} {
		b.Run(c.name, func(b *testing.B) {
			in := []byte(c.in)
			var s Scan
			b.ReportAllocs()
			for b.Loop() {
				d.Decode(&s, in, nil, vectorDay)
			}
		})
	}
}
