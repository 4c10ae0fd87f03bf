package app_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: an address that somebody else has stops the start with one line that names the setting, and nothing stays
// open behind it.
func TestTakenAddress(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	public := free.Addr().String()
	require.NoError(t, free.Close())

	cfg, err := app.Load(app.Sources{Env: []string{
		"PEGEL_DATABASE_URL=postgres://pegel:canary@127.0.0.1:1/pegel", "PEGEL_LISTEN=" + public, "PEGEL_ADMIN_LISTEN=" + taken.Addr().String(),
	}})
	require.NoError(t, err)
	_, err = app.New(t.Context(), cfg, app.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now})
	require.EqualError(t, err, "PEGEL_ADMIN_LISTEN: "+taken.Addr().String()+" is already in use by another process; choose another address")

	again, err := net.Listen("tcp", public)
	require.NoError(t, err, "the address that was free is given back")
	require.NoError(t, again.Close())
}

// Guarantee: with a certificate every listener speaks TLS and nothing else.
func TestTLSOnAllListeners(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificate(t)
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_TLS_CERT_FILE="+cert, "PEGEL_TLS_KEY_FILE="+key,
		"PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM=http://127.0.0.1:9").ready()
	for range 20 { // who never shakes hands keeps nobody waiting
		silent, err := net.Dial("tcp", r.app.Addr("proxy"))
		require.NoError(t, err)
		defer func() { require.NoError(t, silent.Close()) }()
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for url, want := range map[string]int{r.public + "/healthz": http.StatusOK, r.admin + "/healthz": http.StatusOK, r.proxy + "/": http.StatusBadGateway} {
		res, err := client.Get(url)
		require.NoError(t, err, url)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want, res.StatusCode, url)
		require.Equal(t, 2, res.ProtoMajor, url)

		plain, err := http.Get("http" + url[len("https"):])
		require.NoError(t, err)
		require.NoError(t, plain.Body.Close())
		require.Equal(t, http.StatusBadRequest, plain.StatusCode, "plain HTTP is refused")
	}
}

// B063: a request with two lengths is refused over TLS as well, and HTTP/1.1 over TLS is known as such upstream.
func TestFramingOverTLS(t *testing.T) {
	t.Parallel()
	seen := make(chan *http.Request, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r }))
	defer upstream.Close()
	cert, key, pool := certificate(t)
	r := startReplica(t, "PEGEL_DATABASE_URL="+testenv.Postgres(t), "PEGEL_TLS_CERT_FILE="+cert, "PEGEL_TLS_KEY_FILE="+key,
		"PEGEL_PROXY_LISTEN=127.0.0.1:0", "PEGEL_PROXY_UPSTREAM="+upstream.URL).ready()
	conn, err := tls.Dial("tcp", r.app.Addr("proxy"), &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	reader := bufio.NewReader(conn)
	for _, c := range []struct {
		headers string
		status  int
	}{{"Content-Length: 5", http.StatusOK}, {"Content-Length: 5\r\nTransfer-Encoding: chunked", http.StatusBadRequest}} {
		_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\n"+c.headers+"\r\n\r\n0\r\n\r\n")
		require.NoError(t, err)
		res, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, c.status, res.StatusCode, c.headers)
	}
	require.Equal(t, "https", (<-seen).Header.Get("X-Forwarded-Proto"))
	require.Empty(t, seen)
}

// certificate writes a self-signed pair for 127.0.0.1.
func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pegel test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return certFile, keyFile, pool
}
