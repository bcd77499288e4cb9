package testenv

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// RedisPassword is the password of every RedisUser on a test's servers.
const RedisPassword = "correct horse"

// RedisUser is a user that this project tells to make in Redis.
type RedisUser struct {
	Name   string
	Grants []string // commands and key patterns, as ACL SETUSER takes them

	text string // of the file of users
}

// ShippedRedisUser is the user of configs/redis-acl.conf, which may do all that an agent does.
func ShippedRedisUser(t testing.TB) RedisUser {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(moduleRoot(t), "configs", "redis-acl.conf"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	words := strings.Fields(lines[0])
	if len(lines) != 1 || len(words) < 4 || words[0] != "user" || words[2] != "reset" || words[3] != "on" {
		t.Fatalf("not one user, from nothing on: %q", lines)
	}
	return redisUser(t, words[1], words[4:], string(b))
}

// ClaimsRedisUser is the user in docs/DEPLOY.md that may do no more than claims on scans need.
func ClaimsRedisUser(t testing.TB) RedisUser {
	t.Helper()
	return redisUser(t, "scanonce", strings.Fields(Documented(t, "ACL SETUSER scanonce reset on ")), "")
}

// SentinelRights are the documented ones of an agent on a Sentinel.
func SentinelRights(t testing.TB) []string {
	t.Helper()
	return strings.Fields(Documented(t, "ACL SETUSER default resetkeys resetchannels -@all "))
}

// Documented is the rest of the line of docs/DEPLOY.md that begins with prefix, indentation apart.
func Documented(t testing.TB, prefix string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(moduleRoot(t), "docs", "DEPLOY.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
			return rest
		}
	}
	t.Fatalf("no line %q in the documentation", prefix)
	return ""
}

// redisUser takes a password and grants for all of a user's rules: nothing else may be among them.
func redisUser(t testing.TB, name string, rules []string, text string) RedisUser {
	t.Helper()
	u := RedisUser{Name: name, text: text}
	for _, r := range rules {
		switch r[0] {
		case '#', '>':
		case '+', '~':
			if r == "~*" || strings.HasPrefix(r, "+@") {
				t.Fatalf("%s is no single right", r)
			}
			u.Grants = append(u.Grants, r)
		default:
			t.Fatalf("the rule %s is neither a password, a command nor a key pattern", r)
		}
	}
	return u
}

// Without is the user without some grants.
func (u RedisUser) Without(grants ...string) RedisUser {
	u.Grants = slices.DeleteFunc(slices.Clone(u.Grants), func(g string) bool { return slices.Contains(grants, g) })
	return u
}

// On makes the user on the servers, or changes it.
func (u RedisUser) On(servers ...*Redis) {
	args := []any{"ACL", "SETUSER", u.Name, "reset", "on", ">" + RedisPassword}
	for _, g := range u.Grants {
		args = append(args, g)
	}
	for _, s := range servers {
		s.Do(args...)
	}
}

// File is the argument with which a server loads the shipped file as it is, but for the password.
func (u RedisUser) File(t testing.TB) []string {
	t.Helper()
	zeros, sum := strings.Repeat("0", 64), sha256.Sum256([]byte(RedisPassword))
	if !strings.Contains(u.text, "#"+zeros) {
		t.Fatal("the file has no place for a password")
	}
	path := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(path, []byte(strings.Replace(u.text, zeros, hex.EncodeToString(sum[:]), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--aclfile", path}
}
