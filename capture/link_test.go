package capture

import (
	"slices"
	"strings"
	"testing"
)

func TestDigitalLink(t *testing.T) {
	const item = "https://a.example/01/00312345678906"
	for in, want := range map[string]string{
		item:                      "01=00312345678906",
		item + "#fragment":        "01=00312345678906",
		item + "?":                "01=00312345678906",
		item + "/10/A%2FB/21/%2f": "01=00312345678906 10=A/B 21=/",
		item + "/10/A%2541":       "01=00312345678906 10=A%41",
		"https://a.example/01/%30%3031234567890%36": "01=00312345678906",
		item + "/21/A+B":                                                 "01=00312345678906 21=A+B",
		item + "/22/V/10/L/21/S":                                         "01=00312345678906 22=V 10=L 21=S",
		item + "/22/V/21/S":                                              "01=00312345678906 22=V 21=S",
		item + "/235/T":                                                  "01=00312345678906 235=T",
		item + "/235/T?10=L":                                             "01=00312345678906 235=T 10=L",
		item + "?17=271231&17=271231&x=1&&y":                             "01=00312345678906 17=271231",
		item + "?linkType=all&240=R":                                     "01=00312345678906 240=R",
		item + "?240=%26":                                                "01=00312345678906 240=&",
		"http://a.example/01/96385074":                                   "01=00000096385074",
		"HtTpS://a.example:8080/p/q/01/4006381333931":                    "01=04006381333931",
		"https://a.example/01/00312345678906/21/01":                      "01=00312345678906 21=01",
		"https://a.example/8006/003123456789060102/21/S":                 "8006=003123456789060102 21=S",
		"https://a.example/00/006141411234567890?02=00312345678906&37=5": "00=006141411234567890 02=00312345678906 37=5",
		"https://a.example/414/6141411234562/254/X":                      "414=6141411234562 254=X",
		"https://a.example/8004/6141411X?400=1":                          "8004=6141411X 400=1",
	} {
		for _, id := range []string{"", "]Q1", "]d1"} {
			s, r := decode(t, id+in)
			if got := strings.Join(elementsOf(s), " "); !r.OK() || s.Kind != KindDigitalLink || got != want {
				t.Errorf("%s%s: %s %v", id, in, got, r)
			}
		}
	}
	for in, kinds := range map[string][]ErrorKind{
		item + "/21/S/10/L":  {BadURI},
		item + "/10/L/22/V":  {BadURI},
		item + "/21/S/235/T": {BadURI},
		item + "/21/S/21/S":  {BadURI},
		item + "/17/271231":  {BadURI},
		item + "/10":         {BadURI},
		item + "/10/":        {BadURI},
		item + "/":           {BadURI},
		item + "/leaflet":    {BadURI},
		"https://a.example/01/%300312345678906/leaflet": {BadURI},
		item + "/10/L/9999/X":                           {BadURI},
		item + "?10=L":                                  {BadURI},
		item + "?21=S":                                  {BadURI},
		item + "/21/S?10=L":                             {BadURI},
		item + "?22=V":                                  {BadURI},
		item + "?8200=X":                                {BadURI},
		item + "?9999=1":                                {BadURI},
		item + "?17=":                                   {BadURI},
		item + "/10/A%ZZ":                               {BadURI},
		item + "/10/A%4":                                {BadURI},
		item + "/10/A%":                                 {BadURI},
		item + "?240=%G0":                               {BadURI},
		item + "/10/A B":                                {BadURI},
		item + "/10/A\"B":                               {BadURI},
		item + "/10/A%20B":                              {BadCharset},
		item + "?240=A+B":                               {BadCharset},
		item + "/10/A%00B":                              {ControlChar},
		item + "/10/A%C3%A9":                            {BadCharset},
		item + "/10/" + strings.Repeat("L", 21):         {BadLength},
		item + "?17=271301":                             {BadDate},
		item + "?17=270101&17=270102":                   {DuplicateAI},
		item + "?37=4":                                  {IllegalPair},
		"https://a.example/01/00312345678907":           {CheckDigit},
		"https://a.example/01/00000000000000":           {BadValue},
		"https://a.example/01/003123456789":             {CheckDigit, Truncated},
		"https://a.example/01/00312345678":              {Truncated},
		"https:///01/00312345678906":                    {BadURI},
		"https://a@b.example/01/00312345678906":         {BadURI},
		"https://a.example/8018/061414112345678902":     {PHI},
	} {
		refused(t, "]Q1"+in, kinds...)
	}
	for _, in := range []string{"https://a.example", "https://a.example/", "https://a.example/leaflet?01=00312345678906", "https://a.example/01/15", "https://a.example/2026/11/29/news", "https://a.example/00/chapter", "http://", "https://?x", "https://#x", "https://a.example/01/leaflet/10/x"} {
		s := accepted(t, in)
		if s.Kind != KindOpaque || s.Flags != FlagURL || s.IsMovement() {
			t.Errorf("%s: %+v", in, s.Report())
		}
	}
	// A linear code and plain Code 39 carry no product link, but the link is still told.
	if s := accepted(t, "]C0"+item); s.Kind != KindOpaque || s.Flags != FlagURL {
		t.Errorf("%+v", s.Report())
	}
	refused(t, "]Q3"+item, UnknownAI)
}

func TestHRI(t *testing.T) {
	for in, want := range map[string]string{
		"(01)00312345678906":                           "01=00312345678906",
		"(10)LOT(42(01)00312345678906":                 "10=LOT(42 01=00312345678906",
		"(10)A(1)B(12345)C(01)00312345678906":          "10=A(1)B(12345)C 01=00312345678906",
		"(01)00312345678906(10)A(B)C":                  "01=00312345678906 10=A(B)C",
		"(01)00312345678906(10)A)(21)B(":               "01=00312345678906 10=A) 21=B(",
		"(01)00312345678906(3103)000525(8008)27010123": "01=00312345678906 3103=000525 8008=27010123",
		"(01)00312345678906(01)00312345678906":         "01=00312345678906",
	} {
		s, r := decode(t, in)
		if got := strings.Join(elementsOf(s), " "); !r.OK() || s.Kind != KindHRI || got != want {
			t.Errorf("%s: %s %v", in, got, r)
		}
	}
	for in, kinds := range map[string][]ErrorKind{
		"(017)250630":                      {UnknownAI},
		"(1)250630":                        {UnknownAI},
		"(05)250630":                       {UnknownAI},
		"(12345)250630":                    {UnknownAI},
		"(01)00312345678906(70)1":          {UnknownAI},
		"(01)":                             {BadLength},
		"(01)00312345678906(10)":           {BadLength},
		"(01)00312345678906(10)(21)A":      {BadLength},
		"(01)0031234567890":                {Truncated},
		"(01)003123456789061":              {BadLength},
		"(01)00312345678906 (17)271231":    {BadCharset},
		"(01)00312345678907":               {CheckDigit},
		"(01)00312345678906(17)271301":     {BadDate},
		"(01)00312345678906(10)A\x1d(21)B": {ControlChar, BadCharset, UnknownAI},
		"(01)00312345678906(37)4":          {IllegalPair},
		"(10)A(10)B":                       {DuplicateAI},
		"(10)A]d2(10)A":                    {Concatenated},
	} {
		refused(t, in, kinds...)
	}
	for _, in := range []string{"(AB)C", "(", "(01", "()", "(01 )00312345678906"} {
		if s := accepted(t, in); s.Kind != KindOpaque {
			t.Errorf("%q is %s", in, s.Kind)
		}
	}
	if s := accepted(t, "]C0(01)00312345678906"); s.Kind != KindOpaque || !slices.Equal(s.Flags.Names(), []string{"looks_like_gs1"}) {
		t.Errorf("%+v", s.Report())
	}
}
