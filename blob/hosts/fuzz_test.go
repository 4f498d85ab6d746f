package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
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

// Whatever a host that knows the secret answers, each question has a bounded answer or an error, and nothing but the
// refusal that says so counts as an object that is not there.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + `{"name":"a","size":3,"time":5,"version":"v"}`,
		"HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\nContent-Range: bytes 0-1/3\r\nETag: \"v\"\r\n\r\nab",
		"HTTP/1.1 404 Not Found\r\nCairn-Error: absent\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"end", "HTTP/1.1 204 No Content\r\n\r\n", "nonsense", "",
	} {
		f.Add([]byte(text))
	}
	local, err := file.Open(f.TempDir(), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := must.Get(New(local, Config{Peers: []Peer{{Host: "other", Addr: "other:1"}}, Secret: secret}))(t)
		defer s.Close()
		s.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			go func() { _, _ = theirs.Write(sent); theirs.Close() }()
			return ours, nil
		}
		p, o := s.peers[0], blob.Info{Name: "a", Size: 3, Version: "v"}
		if info, err := p.stat(t.Context(), "a"); err == nil && (info.Name != "a" || info.Size < 0 || len(info.Version) > maxVersion) {
			t.Errorf("stat = %+v", info)
		}
		absent := bytes.Contains(sent, []byte("404")) && bytes.Contains(bytes.ToLower(sent), []byte("cairn-error"))
		b := make([]byte, 2)
		if err := p.readAt(t.Context(), o, b, 0); errors.Is(err, fs.ErrNotExist) {
			t.Errorf("readAt: %v; want no fs.ErrNotExist: other hosts may have it", err)
		}
		for what, err := range map[string]error{"remove": p.remove(t.Context(), "a", "v"), "list": second(p.list(t.Context(), "a"))} {
			if errors.Is(err, fs.ErrNotExist) && !absent {
				t.Errorf("%s of %q: %v", what, sent, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }
