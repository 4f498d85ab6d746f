package native

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

func TestMain(m *testing.M) {
	storagetest.RunAsChild(func(t testing.TB, s blob.Store, _ string) error { return saveTwo(t, s, "child", 2, nil) })
	goleak.VerifyTestMain(m)
}
