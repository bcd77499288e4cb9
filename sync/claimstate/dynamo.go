package claimstate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"scanonce/window"
)

// DynamoConfig says which table holds the claims, and for how long.
type DynamoConfig struct {
	Endpoint        string // URL; "" is the region's
	Region          string // "" is what the SDK's chain says, or us-east-1 with an endpoint
	Table           string
	CreateTable     bool          // make the table where it is missing
	CredentialsFile string        // shared credentials file; "" is the SDK's chain
	Timeout         time.Duration // of a call, retries included
	Lives           Lives
	Now             func() window.UTC
}

// Validate checks what can be checked without a connection. Its errors are *ConfigError.
func (c *DynamoConfig) Validate() error {
	if c.Table == "" {
		return &ConfigError{"cannot keep claims in DynamoDB without a table", `write dynamodb.table = "scanonce_claims"`}
	}
	if c.Timeout <= 0 {
		return &ConfigError{"cannot wait for DynamoDB for no time", "give a timeout"}
	}
	if c.Endpoint != "" {
		if err := checkEndpoint(c.Endpoint); err != nil {
			return err
		}
	}
	return c.Lives.Validate()
}

func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return &ConfigError{"cannot use dynamodb.endpoint: it is no URL of a server", "write for example https://dynamodb.us-east-1.amazonaws.com, or leave it out"}
	case u.User != nil:
		return &ConfigError{"cannot use dynamodb.endpoint: there are credentials in it", "give them by the SDK's chain or a credentials file"}
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return &ConfigError{fmt.Sprintf("cannot send claims to %s in plaintext", u.Hostname()), "write https://"}
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

const (
	// dynamoMargin is how long after its end an item is still in the way of a new one: the clock of the agent that
	// wrote it may be late by as much.
	dynamoMargin = 5 * time.Minute
	// dynamoTries bounds the SDK's own retries. A second try that meets the first one's write knows it by its op_id.
	dynamoTries   = 2
	dynamoConns   = 8
	dynamoCreated = 100 * time.Millisecond // between two looks at a table in the making
)

// Dynamo is the Store in DynamoDB: an item for each claim, changed by one conditional write for each operation,
// read consistently. DynamoDB removes expired items days late; until then they are ignored here.
type Dynamo struct {
	counters
	cfg    DynamoConfig
	http   *http.Client
	client *dynamodb.Client

	making sync.Mutex // the table
}

// NewDynamo makes the store. It reads the SDK's configuration files and does not connect.
func NewDynamo(ctx context.Context, cfg DynamoConfig) (*Dynamo, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	base := awshttp.NewBuildableClient().WithDialerOptions(func(d *net.Dialer) { d.Timeout = cfg.Timeout }).
		WithTransportOptions(func(t *http.Transport) {
			t.TLSHandshakeTimeout, t.MaxIdleConnsPerHost, t.IdleConnTimeout = cfg.Timeout, dynamoConns, 30*time.Second
		})
	options := []func(*config.LoadOptions) error{config.WithHTTPClient(base)}
	if cfg.Region != "" {
		options = append(options, config.WithRegion(cfg.Region))
	}
	if cfg.CredentialsFile != "" {
		options = append(options, config.WithSharedCredentialsFiles([]string{cfg.CredentialsFile}))
	}
	chain, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, &ConfigError{"cannot use the AWS configuration: " + err.Error(), "correct the files and variables that the AWS SDK reads"}
	}
	if cfg.Endpoint != "" {
		chain.Region = cmp.Or(chain.Region, "us-east-1")
	}
	if chain.Region == "" {
		return nil, &ConfigError{"cannot find DynamoDB without a region", `write for example dynamodb.region = "us-east-1"`}
	}
	d := &Dynamo{cfg: cfg}
	if b, ok := chain.HTTPClient.(*awshttp.BuildableClient); ok { // with the authorities of the configuration; its own, to be closed
		d.http = &http.Client{Transport: b.GetTransport(), CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // DynamoDB sends nobody elsewhere
		}}
		chain.HTTPClient = d.http
	}
	chain.Logger = nil // the SDK would write to stderr by itself
	d.client = dynamodb.NewFromConfig(chain, func(o *dynamodb.Options) {
		o.RetryMaxAttempts = dynamoTries
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(cfg.Endpoint)
		}
	})
	if e := d.client.Options().BaseEndpoint; e != nil { // it may be from the SDK's files and variables
		if err := checkEndpoint(*e); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// The attributes of an item. All are aliased in expressions, since some are reserved words of DynamoDB.
const (
	attrID      = "pk"
	attrVersion = "version"
	attrNode    = "node"
	attrCost    = "cost"
	attrToken   = "rx_ref"
	attrReject  = "reject_code"
	attrOp      = "op_id"
	attrExpires = "expires_at"
)

type item = map[string]types.AttributeValue

func text(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
func number(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

// seconds is t in the unit of expires_at, rounded down: what ends within a second has ended.
func seconds(t window.UTC) int64 { return int64(t) / 1000 }

// expiry is the end of life of a state written now, in whole seconds.
func (d *Dynamo) expiry(n Node) window.UTC {
	return window.UTC(seconds(d.cfg.Now().Add(d.cfg.Lives.of(n))+999) * 1000)
}

func toItem(s State) item {
	i := item{attrID: text(s.CorrelationID), attrVersion: number(s.Version), attrNode: text(string(s.Node)), attrCost: text(string(s.IngredientCost)),
		attrToken: text(string(s.RxRefToken)), attrReject: text(s.RejectCode), attrOp: text(s.OpID), attrExpires: number(seconds(s.ExpiresAt))}
	return i
}

func fromItem(i item) (State, error) {
	s := func(name string) string {
		if v, ok := i[name].(*types.AttributeValueMemberS); ok {
			return v.Value
		}
		return ""
	}
	n := func(name string) int64 {
		if v, ok := i[name].(*types.AttributeValueMemberN); ok {
			n, _ := strconv.ParseInt(v.Value, 10, 64)
			return n
		}
		return 0
	}
	out := State{CorrelationID: s(attrID), RxRefToken: Token(s(attrToken)), Node: Node(s(attrNode)), IngredientCost: Cost(s(attrCost)), RejectCode: s(attrReject),
		Version: n(attrVersion), OpID: s(attrOp), ExpiresAt: window.UTC(n(attrExpires) * 1000)}
	if err := out.check(); err != nil {
		return State{}, &DamageError{Where: "an item of the DynamoDB table", Detail: err.Error(), hint: "delete it; the claim begins anew"}
	}
	return out, nil
}

// with limits f in time, makes a missing table once if that is wanted, and classifies f's error.
func (d *Dynamo) with(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	err := f(ctx)
	var absent *types.ResourceNotFoundException
	if errors.As(err, &absent) && d.cfg.CreateTable {
		if err = d.makeTable(ctx); err == nil {
			err = f(ctx)
		}
	}
	return d.classify(err)
}

// refused returns the item that made a condition fail; nil if the server does not tell, or there was none.
func refused(err error) (i item, ok bool) {
	var c *types.ConditionalCheckFailedException
	if !errors.As(err, &c) {
		return nil, false
	}
	return c.Item, true
}

// fetch reads an item consistently, whether it has expired or not.
func (d *Dynamo) fetch(ctx context.Context, id string) (s State, ok bool, err error) {
	out, err := d.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &d.cfg.Table, Key: item{attrID: text(id)}, ConsistentRead: aws.Bool(true)})
	if err != nil || len(out.Item) == 0 {
		return State{}, false, err
	}
	s, err = fromItem(out.Item)
	return s, err == nil, err
}

// current is the item that made a condition fail, by the server's answer or by reading it.
func (d *Dynamo) current(ctx context.Context, id string, i item) (s State, ok bool, err error) {
	if len(i) == 0 {
		return d.fetch(ctx, id)
	}
	s, err = fromItem(i)
	return s, err == nil, err
}

func (d *Dynamo) live(s State) bool { return seconds(s.ExpiresAt) > seconds(d.cfg.Now()) }

// find reads a claim; occupied says that it, or what is left of it, is in the way of a new one.
func (d *Dynamo) find(ctx context.Context, id string) (s State, live, occupied bool, err error) {
	err = d.with(ctx, func(ctx context.Context) (err error) {
		var ok bool
		s, ok, err = d.fetch(ctx, id)
		live = ok && d.live(s)
		occupied = ok && !d.gone(s)
		return err
	})
	return s, live, occupied, err
}

// gone says that an expired item may be overwritten.
func (d *Dynamo) gone(s State) bool {
	return seconds(s.ExpiresAt) <= seconds(d.cfg.Now().Add(-dynamoMargin))
}

// install writes a state where there is none. made is false if another stands there, current.
func (d *Dynamo) install(ctx context.Context, s State) (made bool, current State, err error) {
	err = d.with(ctx, func(ctx context.Context) error {
		for range 3 { // an item may be removed between the refusal and the reading
			_, err := d.client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &d.cfg.Table, Item: toItem(s),
				ConditionExpression:                 aws.String("attribute_not_exists(#pk) OR #expires <= :gone"),
				ExpressionAttributeNames:            map[string]string{"#pk": attrID, "#expires": attrExpires},
				ExpressionAttributeValues:           item{":gone": number(seconds(d.cfg.Now().Add(-dynamoMargin)))},
				ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld})
			i, no := refused(err)
			if !no {
				made = err == nil
				return err
			}
			ok := false
			if current, ok, err = d.current(ctx, s.CorrelationID, i); err != nil || ok {
				return err
			}
		}
		return errTurns("create")
	})
	return made, current, err
}

// PutNew implements Store. What has expired less than five minutes ago still stands in the way, and is told as it
// is.
func (d *Dynamo) PutNew(ctx context.Context, n New) (Put, error) { return d.put(d.putNew(ctx, n)) }

func (d *Dynamo) putNew(ctx context.Context, n New) (Put, error) {
	if err := n.Validate(); err != nil {
		return Put{}, err
	}
	s := n.state(d.expiry(Ingested))
	made, current, err := d.install(ctx, s)
	switch {
	case err != nil:
		return Put{}, err
	case made:
		return Created(s), nil
	}
	return n.judge(current), nil
}

// Get implements Store.
func (d *Dynamo) Get(ctx context.Context, id string) (State, bool, error) {
	return d.got(d.get(ctx, id))
}

func (d *Dynamo) get(ctx context.Context, id string) (State, bool, error) {
	if err := checkID("correlation_id", id); err != nil {
		return State{}, false, err
	}
	s, live, _, err := d.find(ctx, id)
	if err != nil || !live {
		return State{}, false, err
	}
	return s, true, nil
}

// Advance implements Store.
func (d *Dynamo) Advance(ctx context.Context, m Move) (Advance, error) {
	return d.counters.advance(d.step(ctx, m))
}

func (d *Dynamo) step(ctx context.Context, m Move) (a Advance, err error) {
	if err := m.Validate(); err != nil {
		return Advance{}, err
	}
	end := d.expiry(m.To)
	update := "SET #version = :next, #node = :to, #reject = :reject, #op = :op, #expires = :end"
	values := item{":ev": number(m.Version), ":from": text(string(m.From)), ":now": number(seconds(d.cfg.Now())),
		":next": number(m.Version + 1), ":to": text(string(m.To)), ":reject": text(m.RejectCode), ":op": text(m.OpID), ":end": number(seconds(end))}
	names := map[string]string{"#version": attrVersion, "#node": attrNode, "#reject": attrReject, "#op": attrOp, "#expires": attrExpires}
	if m.Cost != "" {
		update += ", #cost = :cost"
		values[":cost"], names["#cost"] = text(string(m.Cost)), attrCost
	}
	err = d.with(ctx, func(ctx context.Context) error {
		out, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: &d.cfg.Table, Key: item{attrID: text(m.CorrelationID)},
			UpdateExpression:         &update,
			ConditionExpression:      aws.String("#version = :ev AND #node = :from AND #expires > :now"),
			ExpressionAttributeNames: names, ExpressionAttributeValues: values,
			ReturnValues: types.ReturnValueAllNew, ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld})
		if i, no := refused(err); no {
			s, ok, err := d.current(ctx, m.CorrelationID, i)
			switch {
			case err != nil:
				return err
			case !ok || !d.live(s):
				a = Missing()
			default:
				a = m.judge(s)
			}
			return nil
		}
		if err != nil {
			return err
		}
		s, err := fromItem(out.Attributes)
		a = Advanced(s)
		return err
	})
	if err != nil {
		return Advance{}, err
	}
	return a, nil
}

// Ping implements Store: it reads a claim that is not there.
func (d *Dynamo) Ping(ctx context.Context) error {
	_, _, _, err := d.find(ctx, "ping")
	return err
}

// Close closes the connections.
func (d *Dynamo) Close() error {
	if d.http != nil {
		d.http.CloseIdleConnections()
	}
	return nil
}

// makeTable makes the table and waits for it. Removal of expired items is a saving, so a server without it will
// do.
func (d *Dynamo) makeTable(ctx context.Context) error {
	d.making.Lock()
	defer d.making.Unlock()
	_, err := d.client.CreateTable(ctx, &dynamodb.CreateTableInput{TableName: &d.cfg.Table, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String(attrID), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String(attrID), KeyType: types.KeyTypeHash}}})
	var exists *types.ResourceInUseException // somebody else is making it, or has
	if err != nil && !errors.As(err, &exists) {
		return err
	}
	made := err == nil
	for {
		out, err := d.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &d.cfg.Table})
		if err != nil {
			return err
		}
		if out.Table.TableStatus == types.TableStatusActive {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the table any longer: %w", ctx.Err())
		case <-time.After(dynamoCreated):
		}
	}
	if !made {
		return nil
	}
	_, err = d.client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{TableName: &d.cfg.Table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(attrExpires), Enabled: aws.Bool(true)}})
	if code := errorCode(err); code == "UnknownOperationException" || code == "ValidationException" {
		return nil
	}
	return err
}

// errorCode is the code of an error that the server answered, "" for any other.
func errorCode(err error) string {
	var api interface{ ErrorCode() string }
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// classify tells configuration, a *ConfigError, from weather.
func (d *Dynamo) classify(err error) error {
	var damage *DamageError
	if err == nil || errors.As(err, &damage) {
		return err
	}
	const rights = "allow the actions of configs/dynamodb-policy.json on the table"
	for _, k := range []struct{ code, detail, hint string }{
		{"ResourceNotFoundException", "cannot keep claims in DynamoDB: there is no table " + d.cfg.Table, "correct dynamodb.table and dynamodb.region, make the table (key pk, a string), or write dynamodb.create_table = true"},
		{"AccessDeniedException", "cannot keep claims in DynamoDB: the credentials do not allow it", rights},
		{"UnrecognizedClientException", "cannot log in to DynamoDB: it does not know the credentials", "correct the credentials of the AWS SDK's chain"},
		{"InvalidSignatureException", "cannot log in to DynamoDB: it refuses the signature", "correct the secret of the credentials, and the machine's clock"},
		{"MissingAuthenticationTokenException", "cannot log in to DynamoDB: it wants credentials", "give some to the AWS SDK's chain"},
		{"IncompleteSignatureException", "cannot log in to DynamoDB: it refuses the signature", "correct the credentials of the AWS SDK's chain"},
		{"ValidationException", "cannot use the DynamoDB table " + d.cfg.Table, "make it with the key pk, a string, alone"},
	} {
		if errorCode(err) == k.code {
			return &ConfigError{k.detail, k.hint}
		}
	}
	if strings.Contains(err.Error(), "get credentials") {
		return &ConfigError{"cannot find credentials for DynamoDB", "give some to the AWS SDK's chain: a role, variables, or a credentials file"}
	}
	return fmt.Errorf("cannot reach DynamoDB: %w", err)
}
