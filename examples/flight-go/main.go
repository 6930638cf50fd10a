// Reads a shared table from a Flight gateway with Apache Arrow's own Go client: lists, plans, reads all endpoints in
// parallel, renews one and cancels the flight.
//
//	delta-sharing-spark flight config.share --listen grpc+tcp://127.0.0.1:8815 --token "$TOKEN"
//	go run . -gateway 127.0.0.1:8815 -token "$TOKEN" -table share.schema.table -where "fare > 20"
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func main() {
	gateway := flag.String("gateway", "127.0.0.1:8815", "host:port of the gateway")
	token := flag.String("token", "", "a token that the gateway knows")
	table := flag.String("table", "", "share.schema.table")
	where := flag.String("where", "", "a SQL condition on the rows")
	flag.Parse()

	client, err := flight.NewClientWithMiddleware(*gateway, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer client.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+*token)

	list(ctx, client)
	info := plan(ctx, client, *table, *where)
	fmt.Printf("rows: %d\n", readAll(ctx, client, info.Endpoint))
	if len(info.Endpoint) > 0 {
		info.Endpoint[0] = renew(ctx, client, info.Endpoint[0])
		fmt.Printf("rows of the renewed endpoint: %d\n", read(ctx, client, info.Endpoint[0]))
		cancel(ctx, client, info)
	}
}

// list prints the tables of the share.
func list(ctx context.Context, client flight.Client) {
	flights, err := client.ListFlights(ctx, &flight.Criteria{})
	check(err)
	for {
		info, err := flights.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		fmt.Printf("table: %v\n", info.FlightDescriptor.Path)
	}
}

// plan asks for the endpoints of the rows that fulfil a condition.
func plan(ctx context.Context, client flight.Client, table, where string) *flight.FlightInfo {
	command := map[string]string{"table": table}
	if where != "" {
		command["where"] = where
	}
	text, err := json.Marshal(command)
	check(err)
	info, err := client.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: text})
	check(err)
	schema, err := flight.DeserializeSchema(info.Schema, nil)
	check(err)
	fmt.Printf("columns: %d, endpoints: %d, about: %s\n", schema.NumFields(), len(info.Endpoint), info.AppMetadata)
	return info
}

// readAll reads all endpoints in parallel and counts their rows.
func readAll(ctx context.Context, client flight.Client, endpoints []*flight.FlightEndpoint) int64 {
	var group sync.WaitGroup
	rows := make([]int64, len(endpoints))
	for i, endpoint := range endpoints {
		group.Add(1)
		go func() {
			defer group.Done()
			rows[i] = read(ctx, client, endpoint)
		}()
	}
	group.Wait()
	var total int64
	for _, count := range rows {
		total += count
	}
	return total
}

// read counts the rows of one endpoint.
func read(ctx context.Context, client flight.Client, endpoint *flight.FlightEndpoint) int64 {
	stream, err := client.DoGet(ctx, endpoint.Ticket)
	check(err)
	reader, err := flight.NewRecordReader(stream)
	check(err)
	defer reader.Release()
	var rows int64
	for reader.Next() {
		rows += reader.Record().NumRows()
	}
	check(reader.Err())
	return rows
}

// renew gives an endpoint a later expiration time.
func renew(ctx context.Context, client flight.Client, endpoint *flight.FlightEndpoint) *flight.FlightEndpoint {
	renewed, err := client.RenewFlightEndpoint(ctx, &flight.RenewFlightEndpointRequest{Endpoint: endpoint})
	check(err)
	before, after := endpoint.ExpirationTime.AsTime(), renewed.ExpirationTime.AsTime()
	if after.Before(before) {
		log.Fatalf("the renewed endpoint expires at %v, before %v", after, before)
	}
	fmt.Println("renewed")
	return renewed
}

// cancel ends the flight and checks that its tickets are refused from then on.
func cancel(ctx context.Context, client flight.Client, info *flight.FlightInfo) {
	result, err := client.CancelFlightInfo(ctx, &flight.CancelFlightInfoRequest{Info: info})
	check(err)
	if result.Status != flight.CancelStatusCancelled {
		log.Fatalf("the flight was not cancelled: %v", result.Status)
	}
	stream, err := client.DoGet(ctx, info.Endpoint[0].Ticket)
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		log.Fatalf("the ticket of a cancelled flight was not refused: %v", err)
	}
	fmt.Println("cancelled")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
