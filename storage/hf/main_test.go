package hf

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

func TestMain(m *testing.M) {
	storagetest.RunAsChild(func(t testing.TB, s blob.Store, form string) error { return saveSeeded(t, s, form, "child", 2) })
	goleak.VerifyTestMain(m)
}
