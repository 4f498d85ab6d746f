package gcs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/work"
)

const (
	// composed is the most objects that the service composes at once.
	composed = 32
	// parallel bounds the requests of a method that needs several.
	parallel = 16
	// cleanTime bounds how long Complete removes parts.
	cleanTime = 20 * time.Second
	// maxKey bounds the bytes of a key.
	maxKey = 1024
)

// upload is an object that is sent in parts: temporary objects, named after the upload, the
// level and a number. Level 0 has the parts. If there are more than can be composed at once,
// level 1 has objects that are composed of them, and so on.
type upload struct {
	v        *service
	key      string
	pending  string // the prefix of the keys of the temporary objects
	attempts int    // of Complete
}

var _ remote.Upload = (*upload)(nil)

// Begin makes no request.
func (v *service) Begin(ctx context.Context, key, writer string) (remote.Upload, error) {
	return &upload{v: v, key: key, pending: pendingKey(key, rand.Text())}, nil
}

// pendingKey returns the prefix of the keys of the temporary objects of an upload. For
// messages, it contains as much of the name of the object as fits.
func pendingKey(key, id string) string {
	dir, base := path.Split(key)
	room := maxKey - len(dir) - len(blob.Reserved) - len("-"+id+"-0.00000")
	for len(base) > max(room, 0) {
		_, n := utf8.DecodeLastRuneInString(base)
		base = base[:len(base)-n]
	}
	return dir + blob.Reserved + base + "-" + id
}

// partKey returns the key of a temporary object.
func (u *upload) partKey(level, number int) string {
	return fmt.Sprintf("%s-%d.%05d", u.pending, level, number)
}

// parsePart returns the upload of a temporary object. Locks have reserved names, too, but do not end
// with a level and a number.
func parsePart(key string) (u remote.PendingUpload, ok bool) {
	dir, base := path.Split(key)
	base, ok = strings.CutPrefix(base, blob.Reserved)
	number := strings.LastIndexByte(base, '-')
	if !ok || number < 0 {
		return u, false
	}

	id := strings.LastIndexByte(base[:number], '-')
	level, n, _ := strings.Cut(base[number+1:], ".")
	if id < 0 || level == "" || n == "" || strings.Trim(level+n, "0123456789") != "" {
		return u, false
	}
	return remote.PendingUpload{Key: dir + base[:id], ID: base[id+1 : number]}, true
}

func (u *upload) Part(ctx context.Context, number int, body []byte, sum uint32) error {
	_, err := u.v.Put(ctx, u.partKey(0, number), body, sum, remote.Condition{})
	return err
}

func (u *upload) Complete(ctx context.Context, n int, size int64, sum uint32, c remote.Condition) (remote.Object, error) {
	made, last, err := u.reduce(ctx, n)
	if err != nil {
		return remote.Object{}, err
	}

	o, err := u.compose(ctx, last, sum, c)
	if u.attempts++; u.attempts > 1 && errors.Is(err, remote.ErrCondition) {
		// The answer of an earlier attempt may be lost, and the object be there.
		if now, headErr := u.v.Head(ctx, u.key); headErr == nil && now.Writer == c.Writer {
			o, err = now, nil
		}
	}
	if err != nil {
		return remote.Object{}, err
	}

	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	u.v.removeAll(clean, made) // a sweep finds the remaining objects
	return o, nil
}

// reduce composes parts until the objects that are left can be composed at once. It
// returns the keys of all temporary objects, and of the objects that are left.
func (u *upload) reduce(ctx context.Context, n int) (made, last []string, err error) {
	for level := 0; ; level++ {
		keys := make([]string, n)
		for i := range keys {
			keys[i] = u.partKey(level, i)
		}

		made = append(made, keys...)
		if n <= composed {
			return made, keys, nil
		}

		n = (n + composed - 1) / composed
		err := work.Each(ctx, n, parallel, func(ctx context.Context, i int) error {
			group := keys[i*composed : min((i+1)*composed, len(keys))]
			_, err := u.v.compose(ctx, u.partKey(level+1, i), group, &attrs{ContentType: contentType}, nil)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
}

// compose makes the object visible.
func (u *upload) compose(ctx context.Context, from []string, sum uint32, c remote.Condition) (remote.Object, error) {
	query, err := conditions(c)
	if err != nil {
		return remote.Object{}, err
	}

	a := u.v.written(c)
	a.CRC32C = formatSum(sum)
	made, err := u.v.compose(ctx, u.key, from, a, query)
	if err != nil {
		return remote.Object{}, err
	}
	return checked(made, sum)
}

// compose makes an object of others.
func (v *service) compose(ctx context.Context, key string, from []string, a *attrs, query url.Values) (*attrs, error) {
	type source struct {
		Name string `json:"name"`
	}
	body := struct {
		Destination *attrs   `json:"destination"`
		Sources     []source `json:"sourceObjects"`
	}{Destination: a}
	for _, name := range from {
		body.Sources = append(body.Sources, source{name})
	}

	made := new(attrs)
	return made, explain(v.client.call(ctx, http.MethodPost, objectPath(v.bucket, key)+"/compose", query, body, made))
}

func (u *upload) Abort(ctx context.Context) error { return u.v.removeParts(ctx, u.pending+"-") }

// removeParts removes the temporary objects with keys that begin with prefix.
func (v *service) removeParts(ctx context.Context, prefix string) error {
	var seen remote.PageTokens
	for token := ""; ; {
		page, next, err := v.List(ctx, prefix, token)
		if err != nil {
			return err
		}

		keys := make([]string, len(page))
		for i, o := range page {
			keys[i] = o.Key
		}

		if err := v.removeAll(ctx, keys); err != nil {
			return err
		}
		if token = next; token == "" {
			return nil
		}
		if err := seen.Next(token); err != nil {
			return err
		}
	}
}

// removeAll removes objects, with a request for each.
func (v *service) removeAll(ctx context.Context, keys []string) error {
	return work.Each(ctx, len(keys), parallel, func(ctx context.Context, i int) error { return v.Remove(ctx, keys[i:i+1]) })
}

// Uploads returns the uploads that have temporary objects in the folder prefix. The time of
// an upload is the time of its latest object, so a running upload is not old. With deep,
// it lists all objects below prefix, because only the last elements of the keys of temporary
// objects tell them apart.
func (v *service) Uploads(ctx context.Context, prefix string, deep bool, token string) ([]remote.PendingUpload, string, error) {
	if !deep {
		prefix += blob.Reserved
	}

	var out []remote.PendingUpload
	var seen remote.PageTokens
	for {
		page, next, err := v.List(ctx, prefix, token)
		if err != nil {
			return nil, "", err
		}

		for _, o := range page {
			u, ok := parsePart(o.Key)
			if !ok {
				continue
			}

			if n := len(out); n == 0 || out[n-1].Key != u.Key || out[n-1].ID != u.ID {
				out = append(out, u)
			}

			last := &out[len(out)-1]
			last.Size += o.Size
			if o.ModTime.After(last.Begun) {
				last.Begun = o.ModTime
			}
		}

		if token = next; token == "" {
			return out, "", nil
		}
		if err := seen.Next(token); err != nil {
			return nil, "", err
		}
	}
}

func (v *service) AbortUpload(ctx context.Context, u remote.PendingUpload) error {
	dir, base := path.Split(u.Key)
	return v.removeParts(ctx, dir+blob.Reserved+base+"-"+u.ID+"-")
}
