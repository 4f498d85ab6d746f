//go:build !amd64 || purego

package crc32c

import "testing"

// eachPath runs a test on every implementation there is: one.
func eachPath(t *testing.T, test func(t *testing.T)) { t.Run("plain", test) }
