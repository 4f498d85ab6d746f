package hosts

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

// What the decoder accepts is a list: names that are valid, in order, with the prefix.
func FuzzDecodeList(f *testing.F) {
	for _, text := range []string{
		"", "{}\n", `{"end":true}` + "\n", `{"error":"no"}` + "\n",
		`{"name":"a/b","size":3,"time":5,"version":"1-3"}` + "\n" + `{"name":"a/c"}` + "\n" + `{"end":true,"objects":2}` + "\n",
		`{"name":"../a"}` + "\n" + `{"end":true,"objects":1}` + "\n",
		`{"name":"a/","size":-1}`, `{"name":1}`, `[[[[`, strings.Repeat("a", maxLine+1),
	} {
		f.Add([]byte(text), "a/")
	}
	f.Fuzz(func(t *testing.T, text []byte, prefix string) {
		infos, err := decodeList(bytes.NewReader(text), prefix)
		for i, o := range infos {
			if err != nil || blob.CheckName(o.Name) != nil || !strings.HasPrefix(o.Name, prefix) || o.Size < 0 || i > 0 && infos[i-1].Name >= o.Name {
				t.Errorf("decodeList = %+v, %v; want valid names in order, or an error alone", infos, err)
			}
		}
		if err == nil && !strings.Contains(string(text), fmt.Sprint(len(infos))) && len(infos) > 0 {
			t.Errorf("decodeList = %d objects; want an end with their number", len(infos))
		}
	})
}

// Nobody without the secret passes the handshake, at either end.
func FuzzHandshake(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(magic))
	f.Add([]byte(magic + strings.Repeat("n", nonceSize) + strings.Repeat("p", proofSize)))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + strings.Repeat(" ", 100)))
	f.Fuzz(func(t *testing.T, sent []byte) {
		if err := welcome(end(sent), secret); err == nil {
			t.Errorf("welcome of %x = nil; want an error", sent)
		}
		if err := introduce(end(sent), secret); err == nil {
			t.Errorf("introduce to %x = nil; want an error", sent)
		}
	})
}

// end returns a connection to an end that sends these bytes whatever it receives.
func end(sent []byte) io.ReadWriter {
	return struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(sent), io.Discard}
}
