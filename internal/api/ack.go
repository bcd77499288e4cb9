package api

import (
	"net/http"
)

// Acks keeps for each client of the event stream how far it has come. Refusals are *Error.
type Acks interface {
	// Ack keeps durably that a client has dealt with all events up to id.
	Ack(client, id string) error
	// Acked is the id behind which a client goes on. One without a place gets the present one.
	Acked(client string) (id string, err error)
}

func (s *Server) ack(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(r)
	if err != nil {
		return err
	}
	var in struct {
		Client *string `json:"client"`
		ID     *string `json:"id"`
	}
	if err := decode(body, &in); err != nil {
		return err
	}
	if in.Client == nil || in.ID == nil {
		return badRequest("field_missing", "cannot acknowledge without client and id", "write the application's own name as client, and the id of the last event that it has dealt with")
	}
	if err := s.events.Ack(*in.Client, *in.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
