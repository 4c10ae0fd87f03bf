package redisstore_test

import (
	"os"
	"testing"

	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
