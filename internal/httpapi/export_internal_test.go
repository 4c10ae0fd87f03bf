package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Guarantee: whatever invisible characters a client puts in front, its text is no formula in an administrator's spreadsheet.
func TestCSVCellsAreNoFormulas(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"=1", "+1", "-1", "@x", " =1", "\t=1", "\r=1", "\nx", "\u00a0=1", "\u3000=1", "\u0085=1", "\u200b=1", "\u00ad=1", "\ufeff=1", "\u202e=1", "\x1b=1", "＝1", "−1"} {
		require.Equal(t, "'"+text, csvCell(text), "%q", text)
	}
	for _, text := range []string{"", "a", "a=1", "u-1", " a", "é", "1", "'=1"} {
		require.Equal(t, text, csvCell(text))
	}
}
