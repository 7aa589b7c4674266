package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// How a client secures its connections; the zero value does not.
type security struct {
	CA        string // file with the trusted certificates in PEM
	Mechanism string // of SASL
	User      string
	Password  string
	Token     string // of OAUTHBEARER
}

func (given security) options() ([]kgo.Opt, error) {
	if given == (security{}) {
		return nil, nil
	}
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(given.CA)
	if err != nil {
		return nil, err
	}
	if !trusted.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", given.CA)
	}
	var mechanism sasl.Mechanism
	switch given.Mechanism {
	case "PLAIN":
		mechanism = plain.Auth{User: given.User, Pass: given.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		mechanism = scram.Auth{User: given.User, Pass: given.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		mechanism = scram.Auth{User: given.User, Pass: given.Password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		mechanism = oauth.Auth{Token: given.Token}.AsMechanism()
	default:
		return nil, fmt.Errorf("unknown mechanism %q", given.Mechanism)
	}
	return []kgo.Opt{kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}), kgo.SASL(mechanism)}, nil
}
