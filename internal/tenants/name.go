package tenants

import (
	"strings"
	"unicode"
)

// TidyName is a name or a title as it is stored: without white space at its ends, which nobody sees and pasting brings along. A text of
// white space alone stays what it is, for validateName to refuse.
func TidyName(s string) string {
	if tidy := strings.TrimSpace(s); tidy != "" {
		return tidy
	}
	return s
}

// validateName checks what is asked of a name or a title as it is written, and not of a stored one (ValidateStored…): that one is served
// whatever it is called. Empty is the length's matter.
func validateName(pointer, s string) []FieldError {
	var f findings
	switch {
	case s == "" || !validText(s):
	case !strings.ContainsFunc(s, visible):
		f.add(pointer, "must not be only spaces")
	case strings.ContainsFunc(s, steering):
		f.add(pointer, "must not hold line breaks or other control characters")
	}
	return f
}

// visible is what leaves a mark: letters, digits, signs. Fillers and variation selectors count as letters and marks, and are blank.
func visible(r rune) bool {
	const brailleBlank = '\u2800'
	return unicode.IsGraphic(r) && !unicode.IsSpace(r) && r != brailleBlank && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// steering is what moves a cursor or begins a line. Marks of direction are none: names in Arabic and Hebrew need them.
func steering(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) }
