package capture

import "bytes"

const (
	detailLink   = "This is a web link, not a drug label: scan the product's own barcode."
	detailCoupon = "This is a coupon, not a product: scan the product's own barcode."
)

// AtCounter refuses what reads well and yet is no item of a pharmacy: an ordinary web link, which is on many
// packages beside the label, and a coupon (UPC number system 5, GS1 prefixes 981 to 984 and 99, GS1
// Application Identifiers 8110 and 8112). Passing them on as unknown texts would sound like a good scan.
func (s *Scan) AtCounter() Refusal {
	switch {
	case s.Kind == KindOpaque && s.Flags.Has(FlagURL):
		return refuse(UnsupportedFormat, detailLink)
	case isCouponGTIN(s.GTIN), s.Kind == KindOpaque && isCouponText(s.Element()):
		return refuse(UnsupportedFormat, detailCoupon)
	}
	coupon := false
	if s.Kind == KindGS1 {
		s.AIs(func(ai, _, _ string) bool {
			coupon = ai == "8110" || ai == "8112"
			return !coupon
		})
	}
	if coupon {
		return refuse(UnsupportedFormat, detailCoupon)
	}
	return Refusal{}
}

func isCouponGTIN(gtin string) bool {
	if len(gtin) != 14 {
		return false
	}
	p := gtin[1:4]
	return p[:2] == "05" || p >= "981" && p <= "984" || p[:2] == "99"
}

// isCouponText finds a coupon of GS1 DataBar that came without AIM identifier.
func isCouponText(text []byte) bool {
	return len(text) >= 24 && allDigits(text) && (bytes.HasPrefix(text, []byte("8110")) || bytes.HasPrefix(text, []byte("8112")))
}
