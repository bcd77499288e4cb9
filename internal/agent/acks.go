package agent

import (
	"errors"
	"net/http"

	"scanonce/internal/api"
	"scanonce/internal/events"
)

// Ack keeps how far a client of the stream has come; see api.Acks.
func (s eventStream) Ack(client, id string) error { return ackError(s.Log.Ack(client, id)) }

// Acked is where a client goes on; see api.Acks.
func (s eventStream) Acked(client string) (string, error) {
	id, err := s.Log.Acked(client)
	return id, ackError(err)
}

func ackError(err error) error {
	refuse := func(status int, reason, hint string) error {
		return &api.Error{Status: status, Reason: reason, Detail: err.Error(), Hint: hint}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, events.ErrClient):
		return refuse(http.StatusUnprocessableEntity, "bad_client", "write 1 to 64 of A-Z a-z 0-9 _ . -")
	case errors.Is(err, events.ErrUnknownID):
		return refuse(http.StatusUnprocessableEntity, "unknown_event", "write the id of an event of GET /v1/events; one from before a gap is known no more")
	case errors.Is(err, events.ErrClients):
		return refuse(http.StatusTooManyRequests, "too_many_clients", "use one name for each application, not for each connection; those that miss events make room by themselves")
	}
	return refuse(http.StatusServiceUnavailable, "not_durable", "check the disk under the state folder, then try again")
}
