// Reads a shared table from a Flight gateway with Apache Arrow's own Go client: lists, plans, reads all endpoints in
// parallel, renews one and cancels the flight. With -poll-gateway it polls a plan as well, and reads where its endpoints say.
//
//	delta-sharing-spark flight config.share --listen grpc+tcp://127.0.0.1:8815 --poll-port 8816 --token "$TOKEN"
//	go run . -gateway 127.0.0.1:8815 -token "$TOKEN" -table share.schema.table -where "fare > 20"
//	go run . -poll-gateway 127.0.0.1:8816 -token "$TOKEN" -table share.schema.table -where "fare > 20"
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"strings"
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
	pollGateway := flag.String("poll-gateway", "", "host:port of the gateway's port for polls")
	cancelPoll := flag.Bool("cancel-poll", false, "cancel the plan after its first poll")
	flag.Parse()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+*token)

	if *pollGateway != "" {
		client := connect(*pollGateway)
		defer client.Close()
		list(ctx, client)
		polled(ctx, client, command(*table, *where), *cancelPoll)
		return
	}
	client := connect(*gateway)
	defer client.Close()
	list(ctx, client)
	info := plan(ctx, client, command(*table, *where))
	fmt.Printf("rows: %d\n", readAll(ctx, client, info.Endpoint))
	if len(info.Endpoint) > 0 {
		info.Endpoint[0] = renew(ctx, client, info.Endpoint[0])
		fmt.Printf("rows of the renewed endpoint: %d\n", read(ctx, client, info.Endpoint[0]))
		cancel(ctx, client, info)
	}
}

// connect returns a client of a port of the gateway.
func connect(address string) flight.Client {
	client, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	return client
}

// polled polls a plan until it is complete and counts its rows, or cancels it after the first poll.
func polled(ctx context.Context, client flight.Client, descriptor *flight.FlightDescriptor, cancels bool) {
	polls := 0
	for descriptor != nil {
		polled, err := client.PollFlightInfo(ctx, descriptor)
		check(err)
		polls++
		if cancels {
			cancelPolled(ctx, client, polled)
			return
		}
		descriptor = polled.FlightDescriptor
		if descriptor == nil {
			fmt.Printf("polls: %d, progress: %.1f\n", polls, polled.GetProgress())
			fmt.Printf("rows: %d\n", readWhereTheyAre(ctx, polled.Info.Endpoint))
		}
	}
}

// cancelPolled cancels a plan that is under way and checks that it is polled no more.
func cancelPolled(ctx context.Context, client flight.Client, polled *flight.PollInfo) {
	result, err := client.CancelFlightInfo(ctx, &flight.CancelFlightInfoRequest{Info: polled.Info})
	check(err)
	if result.Status != flight.CancelStatusCancelled {
		log.Fatalf("the plan was not cancelled: %v", result.Status)
	}
	if _, err = client.PollFlightInfo(ctx, polled.FlightDescriptor); status.Code(err) != codes.Canceled {
		log.Fatalf("the poll of a cancelled plan was not refused: %v", err)
	}
	fmt.Println("the plan was cancelled")
}

// readWhereTheyAre counts the rows of endpoints, each at its own location.
func readWhereTheyAre(ctx context.Context, endpoints []*flight.FlightEndpoint) int64 {
	clients := map[string]flight.Client{}
	var rows int64
	for _, endpoint := range endpoints {
		address := strings.TrimPrefix(endpoint.Location[0].Uri, "grpc+tcp://")
		if clients[address] == nil {
			clients[address] = connect(address)
			defer clients[address].Close()
		}
		rows += read(ctx, clients[address], endpoint)
	}
	return rows
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

// command is the descriptor of the rows that fulfil a condition.
func command(table, where string) *flight.FlightDescriptor {
	fields := map[string]string{"table": table}
	if where != "" {
		fields["where"] = where
	}
	text, err := json.Marshal(fields)
	check(err)
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: text}
}

// plan asks for the endpoints of a descriptor's rows.
func plan(ctx context.Context, client flight.Client, descriptor *flight.FlightDescriptor) *flight.FlightInfo {
	info, err := client.GetFlightInfo(ctx, descriptor)
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
