package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Guarantee: a renewed certificate is served without a restart, and one that is half written does no harm.
func TestCertificateFollowsItsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	begin := time.Now()
	writePair(t, certFile, keyFile, 1, begin)
	now := begin
	c, err := newCertificate(certFile, keyFile, func() time.Time { return now }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	serial := func() int64 {
		pair, err := c.config().GetCertificate(nil)
		require.NoError(t, err)
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		require.NoError(t, err)
		return leaf.SerialNumber.Int64()
	}
	require.EqualValues(t, 1, serial())

	writePair(t, certFile, keyFile, 2, begin.Add(time.Minute))
	require.EqualValues(t, 1, serial(), "the files are not looked at for every connection")
	now = now.Add(certificateCheck)
	require.EqualValues(t, 2, serial())

	require.NoError(t, os.WriteFile(certFile, []byte("half"), 0o600))
	now = now.Add(certificateCheck)
	require.EqualValues(t, 2, serial(), "a pair that cannot be read leaves the old one in service")
	writePair(t, certFile, keyFile, 3, begin.Add(2*time.Minute))
	now = now.Add(certificateCheck)
	require.EqualValues(t, 3, serial())
}

func writePair(t *testing.T, certFile, keyFile string, serial int64, changed time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: changed.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		require.NoError(t, os.Chtimes(path, changed, changed))
	}
}
