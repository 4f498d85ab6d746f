package gcs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob/remote"
)

// scope is the scope that the credentials must have.
const scope = "https://www.googleapis.com/auth/devstorage.read_write"

// client makes requests of the JSON API, and reads contents through the XML API, as Google's
// own clients do. It repeats no requests: package remote does.
type client struct {
	http *http.Client
	base string // such as https://storage.googleapis.com
}

// attrs describes an object, in the names of the JSON API.
type attrs struct {
	Name        string            `json:"name,omitempty"`
	Bucket      string            `json:"bucket,omitempty"`
	ContentType string            `json:"contentType,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Size        int64             `json:"size,omitempty,string"`
	Generation  int64             `json:"generation,omitempty,string"`
	Updated     time.Time         `json:"updated,omitzero"`
	CRC32C      string            `json:"crc32c,omitempty"` // big-endian, in base64; empty if the service does not tell it
}

// object returns the properties of an object for package remote.
func (a *attrs) object() remote.Object {
	return remote.Object{Key: a.Name, Size: a.Size, ModTime: a.Updated, Version: strconv.FormatInt(a.Generation, 10), Writer: a.Metadata[writerKey]}
}

// parseSum parses a checksum as the service writes it. ok is false if text is not a checksum.
func parseSum(s string) (sum uint32, ok bool) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// formatSum is the inverse of parseSum.
func formatSum(sum uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// apiPath is the prefix of all paths of the JSON API.
const apiPath = "/storage/v1"

// objectPath returns the path of an object in the JSON API, or of all objects if key is
// empty.
func objectPath(bucket, key string) string {
	path := apiPath + "/b/" + url.PathEscape(bucket) + "/o"
	if key != "" {
		path += "/" + url.PathEscape(key)
	}
	return path
}

// call makes a request of the JSON API and decodes the answer into out, unless that is nil.
// in is the body of the request, or nil.
func (c *client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}

	r, err := http.NewRequestWithContext(ctx, method, c.base+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return err
	}

	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return c.do(r, out)
}

// insert writes an object: its description and its bytes, in one request.
func (c *client) insert(ctx context.Context, bucket string, a *attrs, body []byte, query url.Values) (*attrs, error) {
	description, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}

	boundary := rand.Text()
	head := fmt.Sprintf("--%s\r\nContent-Type: application/json\r\n\r\n%s\r\n--%[1]s\r\nContent-Type: %s\r\n\r\n", boundary, description, a.ContentType)
	tail := fmt.Sprintf("\r\n--%s--\r\n", boundary)
	query.Set("uploadType", "multipart")
	query.Set("name", a.Name)

	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/upload"+objectPath(bucket, "")+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}

	r.Header.Set("Content-Type", "multipart/related; boundary="+boundary)
	r.GetBody = func() (io.ReadCloser, error) { // so that net/http may repeat a request that it has not sent
		return io.NopCloser(io.MultiReader(strings.NewReader(head), bytes.NewReader(body), strings.NewReader(tail))), nil
	}
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(head) + len(body) + len(tail))
	out := new(attrs)
	return out, c.do(r, out)
}

// do makes a request and decodes the answer into out, unless that is nil.
func (c *client) do(r *http.Request, out any) error {
	answer, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()

	b, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case answer.StatusCode < 200 || answer.StatusCode > 299:
		return newAnswerError(answer, b)
	case err != nil:
		return err // the connection failed
	case out == nil:
		return nil
	}

	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("the answer is not what the request asks for: %w", err)
	}
	return nil
}

// read begins to read the bytes of an object from off on, n at most. The caller closes the
// body. generation 0 is the newest one.
func (c *client) read(ctx context.Context, bucket, key string, generation, off, n int64) (*attrs, io.ReadCloser, error) {
	address := c.base + "/" + url.PathEscape(bucket) + "/" + url.PathEscape(key)
	if generation != 0 {
		address += "?generation=" + strconv.FormatInt(generation, 10)
	}

	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, nil, err
	}

	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	r.Header.Set("Accept-Encoding", "gzip") // bytes as they are stored
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, nil, err
	}

	a, err := describeAnswer(answer, key, off)
	if err != nil {
		answer.Body.Close()
		return nil, nil, err
	}
	return a, answer.Body, nil
}

// describeAnswer returns the properties of an object from the headers of an answer to a read
// from off on.
func describeAnswer(answer *http.Response, key string, off int64) (*attrs, error) {
	a := &attrs{Name: key, Metadata: map[string]string{writerKey: answer.Header.Get("X-Goog-Meta-" + writerKey)}}
	switch answer.StatusCode {
	case http.StatusOK:
		if a.Size = answer.ContentLength; off > 0 {
			return nil, fmt.Errorf("the service has sent the whole object instead of the bytes from %d on", off)
		}
	case http.StatusPartialContent:
		var first, last int64
		if n, _ := fmt.Sscanf(answer.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &a.Size); n != 3 || first != off {
			return nil, fmt.Errorf("the service has sent the range %q instead of the bytes from %d on", answer.Header.Get("Content-Range"), off)
		}
	default:
		b, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20)) // a text for people
		return nil, newAnswerError(answer, b)
	}

	var err error
	if a.Generation, err = strconv.ParseInt(answer.Header.Get("X-Goog-Generation"), 10, 64); err != nil {
		return nil, fmt.Errorf("the answer has no generation: %w", err)
	}

	a.Updated, _ = http.ParseTime(answer.Header.Get("Last-Modified")) // zero if the header is missing
	for _, sums := range answer.Header.Values("X-Goog-Hash") {
		for sum := range strings.SplitSeq(sums, ",") {
			if s, ok := strings.CutPrefix(strings.TrimSpace(sum), "crc32c="); ok {
				a.CRC32C = s
			}
		}
	}

	return a, nil
}

// maxAnswer bounds the answers of the JSON API. A list has at most 1000 objects.
const maxAnswer = 64 << 20
