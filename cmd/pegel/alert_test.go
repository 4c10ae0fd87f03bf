package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestAlertTest(t *testing.T) {
	t.Parallel()
	mail := testenv.NewMailServer(t, testenv.MailOptions{})
	args := []string{"alert", "test", "--smtp-url=smtp://" + mail.Addr, "--mail-from=pegel@example.org", "--alert-to=ops@example.org,boss@example.org"}
	out, err := run(t, args...)
	require.NoError(t, err)
	require.Equal(t, "mail: sent\n", out)
	require.Equal(t, []string{"ops@example.org", "boss@example.org"}, mail.Mails()[0].To)

	out, err = run(t, append(args, "--alert-webhook-url=http://127.0.0.1:1", "--alert-webhook-secret=whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")...)
	require.EqualError(t, err, "not everybody was reached")
	require.Contains(t, out, "mail: sent\nwebhook: not sent: ")
	_, err = run(t, "alert", "test")
	require.ErrorContains(t, err, "PEGEL_SMTP_URL")
}
