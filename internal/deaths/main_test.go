//go:build unix

package deaths

import (
	"flag"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The jobs wait for timeouts more than they compute: all go at once, however
	// few processors there are.
	if err := flag.Set("test.parallel", strconv.Itoa(lanes)); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
