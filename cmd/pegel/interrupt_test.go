package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is one command in a process of its own, with everything it may wait for.
func process(t *testing.T, server string, args ...string) (cmd *exec.Cmd, stderr *syncBuffer, wait func() int) {
	t.Helper()
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1", "PEGEL_SERVER="+server, "PEGEL_TOKEN=pga_x", "SSL_CERT_FILE=")
	stderr = &syncBuffer{}
	cmd.Stderr = stderr
	return cmd, stderr, func() int {
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait() // the state tells
			close(ended)
		}()
		select {
		case <-ended:
			return cmd.ProcessState.ExitCode()
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
			require.Fail(t, "it does not end", "%s", stderr)
			return -1
		}
	}
}

// Guarantee: one Ctrl-C ends a command, whatever it waits for: a server that falls silent within its answer, or standard input.
func TestOneInterruptEndsACommand(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "{")
		_ = http.NewResponseController(w).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	for _, args := range []string{"tenant list", "audit export", "top", "export"} {
		cmd, stderr, wait := process(t, server.URL, strings.Fields(args)...)
		require.NoError(t, cmd.Start(), args)
		<-began
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.Equal(t, exitError, wait(), args)
		require.Equal(t, "pegel: interrupted\n", stderr.String(), args)
	}
	cmd, stderr, wait := process(t, server.URL, "apply", "-f", "-")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = in.Write([]byte(strings.Repeat("#\n", 256<<10))) // more than a pipe holds: once it is written, the command is reading
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitError, wait())
	require.Equal(t, "pegel: standard input: interrupted\n", stderr.String())
}

// authority writes a certificate of a private authority, and one it signed for 127.0.0.1 with its key.
func authority(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		return k
	}
	caKey, ownKey := newKey(), newKey()
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "private"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	own := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "pegel"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &caKey.PublicKey, caKey)
	require.NoError(t, err)
	ownDER, err := x509.CreateCertificate(rand.Reader, own, root, &ownKey.PublicKey, caKey)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(ownKey)
	require.NoError(t, err)
	return write("ca.pem", "CERTIFICATE", rootDER), write("cert.pem", "CERTIFICATE", ownDER), write("key.pem", "EC PRIVATE KEY", keyDER)
}

// Guarantee: a server with a certificate of a private authority is reached with SSL_CERT_FILE, and without it the error names that.
func TestAPrivateAuthority(t *testing.T) {
	t.Parallel()
	ca, cert, key := authority(t, t.TempDir())
	s := startServer(t, "PEGEL_TLS_CERT_FILE="+cert, "PEGEL_TLS_KEY_FILE="+key, "SSL_CERT_FILE="+ca)
	require.Equal(t, "enforce\n", s.must("mode get"))
	_, stderr, status := s.shell("SSL_CERT_FILE= pegel mode get </dev/null\n")
	require.Equal(t, exitError, status)
	require.Contains(t, stderr, "cannot be trusted")
	require.Contains(t, stderr, "SSL_CERT_FILE names the file with its certificate")
	_, stderr, status = s.pegel("mode get --server " + strings.Replace(s.admin, "https://", "http://", 1))
	require.Equal(t, exitError, status)
	require.Contains(t, stderr, "is asked by http:// and speaks https://")
}
