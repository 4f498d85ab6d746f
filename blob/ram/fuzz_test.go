package ram

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzDecodeMembers: what the decoder accepts are hosts with ids of their own and a secret, which survive
// another round.
func FuzzDecodeMembers(f *testing.F) {
	seal := func(body string) []byte {
		data, err := json.Marshal(sealed{checksum([]byte(body)), json.RawMessage(body)})
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	for _, body := range []string{
		`{"version":1,"secret":"c2VjcmV0","epoch":3,"confirmed":2,"hosts":[{"id":"5f1c","name":"node-1","domain":"rack 1","addresses":["10.0.0.7:41300"]},{"id":"91ab","name":"node-2","addresses":null,"left":true}]}`,
		`{"version":1,"secret":null,"hosts":null}`, `{"version":2}`, `{"version":1,"hosts":[{"id":""}]}`,
		`{"version":1,"secret":"eA==","hosts":[{"id":"a"},{"id":"a"}]}`, `{"version":1,"more":1}`, `[]`, `"x"`,
	} {
		f.Add(seal(body))
	}
	f.Add([]byte(`{"crc32c":"00000000","members":{}}`))
	f.Add([]byte(strings.Repeat("[", 100)))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Most inputs have a wrong checksum. The text of the members is tried with the right one too.
		var s sealed
		if json.Unmarshal(data, &s) == nil && json.Valid(s.Members) {
			s.CRC32C = checksum(s.Members)
			if again, err := json.Marshal(s); err == nil {
				tryMembers(t, again)
			}
		}
		tryMembers(t, data)
	})
}

func tryMembers(t *testing.T, data []byte) {
	m, err := decodeMembers(data)
	if err != nil {
		return
	}
	if err := m.check(); err != nil {
		t.Fatalf("decodeMembers accepts what check does not: %v", err)
	}
	for _, h := range m.Hosts {
		_ = h.Label()
	}
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(sealed{checksum(body), body})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeMembers(text); err != nil {
		t.Fatalf("decodeMembers of what it has accepted: %v", err)
	}
}
