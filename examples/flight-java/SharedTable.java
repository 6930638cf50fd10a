// Reads a shared table from a Flight gateway with Apache Arrow's own Java client: lists, plans, reads each endpoint, renews one
// and cancels the flight. With -poll-gateway it polls a plan as well, and reads where its endpoints say.
//
//   mvn dependency:copy-dependencies -DoutputDirectory=jars
//   delta-sharing-spark flight config.share --listen grpc+tcp://127.0.0.1:8815 --poll-port 8816 --token "$TOKEN"
//   java --add-opens=java.base/java.nio=ALL-UNNAMED -cp 'jars/*' SharedTable.java \
//     -poll-gateway 127.0.0.1:8816 -token "$TOKEN" -table share.schema.table -where "fare > 20"

import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.flight.CallOption;
import org.apache.arrow.flight.CancelFlightInfoRequest;
import org.apache.arrow.flight.CancelStatus;
import org.apache.arrow.flight.Criteria;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightEndpoint;
import org.apache.arrow.flight.FlightInfo;
import org.apache.arrow.flight.FlightRuntimeException;
import org.apache.arrow.flight.FlightStatusCode;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.PollInfo;
import org.apache.arrow.flight.RenewFlightEndpointRequest;
import org.apache.arrow.flight.grpc.CredentialCallOption;
import org.apache.arrow.flight.auth2.BearerCredentialWriter;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;

public class SharedTable {
  private final BufferAllocator allocator = new RootAllocator();
  private final CallOption token;

  SharedTable(String token) {
    this.token = new CredentialCallOption(new BearerCredentialWriter(token));
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> given = new HashMap<>();
    for (int i = 0; i < arguments.length; i++) {
      boolean isSwitch = arguments[i].equals("-cancel-poll");
      given.put(arguments[i], isSwitch ? "" : arguments[++i]);
    }
    SharedTable table = new SharedTable(given.get("-token"));
    FlightDescriptor command = command(given.get("-table"), given.get("-where"));
    String polls = given.get("-poll-gateway");
    try (FlightClient client = table.connect("grpc+tcp://" + (polls == null ? given.get("-gateway") : polls))) {
      table.list(client);
      if (polls != null) {
        table.poll(client, command, given.containsKey("-cancel-poll"));
      } else {
        table.plan(client, command);
      }
    }
  }

  /** The descriptor of the rows that fulfil a condition. */
  static FlightDescriptor command(String table, String where) throws Exception {
    Map<String, String> fields = new LinkedHashMap<>(Map.of("table", table));
    if (where != null) {
      fields.put("where", where);
    }
    return FlightDescriptor.command(new ObjectMapper().writeValueAsBytes(fields));
  }

  FlightClient connect(String uri) throws Exception {
    return FlightClient.builder(allocator, new Location(uri)).build();
  }

  /** Prints the tables of the share. */
  void list(FlightClient client) {
    for (FlightInfo info : client.listFlights(Criteria.ALL, token)) {
      System.out.println("table: " + info.getDescriptor().getPath());
    }
  }

  /** Asks for the endpoints of a descriptor's rows, reads them, renews the first one and cancels the flight. */
  void plan(FlightClient client, FlightDescriptor descriptor) throws Exception {
    FlightInfo info = client.getInfo(descriptor, token);
    String about = new String(info.getAppMetadata(), StandardCharsets.UTF_8);
    int columns = info.getSchemaOptional().orElseThrow().getFields().size();
    System.out.printf("columns: %d, endpoints: %d, about: %s%n", columns, info.getEndpoints().size(), about);
    System.out.println("rows: " + read(client, info.getEndpoints()));
    FlightEndpoint first = info.getEndpoints().get(0);
    FlightEndpoint renewed = client.renewFlightEndpoint(new RenewFlightEndpointRequest(first), token);
    System.out.println("rows of the renewed endpoint: " + read(client, List.of(renewed)));
    cancel(client, info);
    refused(FlightStatusCode.UNAUTHORIZED, () -> read(client, List.of(first)));
    System.out.println("cancelled");
  }

  /** Polls a plan until it is complete and counts its rows, or cancels it after the first poll. */
  void poll(FlightClient client, FlightDescriptor descriptor, boolean cancels) throws Exception {
    PollInfo polled = client.pollInfo(descriptor, token);
    int polls = 1;
    if (cancels) {
      FlightDescriptor next = polled.getFlightDescriptor().orElseThrow();
      cancel(client, polled.getFlightInfo());
      refused(FlightStatusCode.CANCELLED, () -> client.pollInfo(next, token));
      System.out.println("the plan was cancelled");
      return;
    }
    for (; polled.getFlightDescriptor().isPresent(); polls++) {
      polled = client.pollInfo(polled.getFlightDescriptor().get(), token);
    }
    System.out.printf("polls: %d, progress: %.1f%n", polls, polled.getProgress().orElseThrow());
    System.out.println("rows: " + readWhereTheyAre(polled.getFlightInfo().getEndpoints()));
  }

  /** Counts the rows of endpoints, each at its own location. */
  long readWhereTheyAre(List<FlightEndpoint> endpoints) throws Exception {
    long rows = 0;
    for (FlightEndpoint endpoint : endpoints) {
      try (FlightClient client = connect(endpoint.getLocations().get(0).getUri().toString())) {
        rows += read(client, List.of(endpoint));
      }
    }
    return rows;
  }

  /** Counts the rows of endpoints. */
  long read(FlightClient client, List<FlightEndpoint> endpoints) throws Exception {
    long rows = 0;
    for (FlightEndpoint endpoint : endpoints) {
      try (var stream = client.getStream(endpoint.getTicket(), token)) {
        while (stream.next()) {
          rows += stream.getRoot().getRowCount();
        }
      }
    }
    return rows;
  }

  /** Ends a flight, or the plan of one. */
  void cancel(FlightClient client, FlightInfo info) {
    CancelStatus status = client.cancelFlightInfo(new CancelFlightInfoRequest(info), token).getStatus();
    if (status != CancelStatus.CANCELLED) {
      throw new IllegalStateException("it was not cancelled: " + status);
    }
  }

  interface Call {
    Object make() throws Exception;
  }

  /** Checks that a call is refused with a status. */
  static void refused(FlightStatusCode code, Call call) throws Exception {
    try {
      call.make();
    } catch (FlightRuntimeException error) {
      if (error.status().code() == code) {
        return;
      }
      throw error;
    }
    throw new IllegalStateException("it was not refused with " + code);
  }
}
