import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.lang.ref.Cleaner;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.function.BiFunction;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.Sample;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.ThreadUtils;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Asks Python which files of a shared table a scan needs. file_index.py has Spark's own compiler (Janino, which knows
 * no lambdas and ignores generics) compile this file once for each JVM, and writes what listFiles decodes.
 *
 * Python is called for listings and sizes alone: what Spark compares, prints and looks up is answered here. Partition
 * filters are applied here, exactly, for Spark does not apply them again after it has listed.
 */
public final class SharedTableIndex implements FileIndex {
    private static final int FAILURE = 0, LISTING = 1, SIZE = 2;
    /** The rows of a scan that reads none of their columns. */
    private static final long COUNTED = -1;
    private static final long COUNTED_TOGETHER = -2;
    /**
     * Threads that call Python, and live as long as the JVM. Py4J keeps a connection, and Python a thread, for each
     * thread of Java's that ever called, also when that has ended; and Spark plans in threads that it makes by the hundred.
     */
    private static final int CALLERS = 8;

    private static final ExecutorService callers = ThreadUtils.newDaemonFixedThreadPool(CALLERS, "delta-sharing-listing");

    /** Lets go of what answers for an index when Spark has let go of the last partition that it listed. */
    private static final Cleaner cleaner = Cleaner.create();

    /** The schema that the scan reads for which this thread asks next: Spark makes a scan's reader before it lists its files. */
    private final ThreadLocal planned = new ThreadLocal();

    private BiFunction lister;
    private String identity;
    private String name;
    private Path root;
    private StructType partitionSchema;
    private String deletionColumn;
    private long moment;

    /**
     * An index of one load.
     *
     * @param lister Python's: the conjuncts of a scan (a list of Expression) and its needs as JSON (the rows, null for
     *     all, -1 where it reads no column of theirs, -2 where it reads none of their partitions either; the schema that it reads, null where that is not known) to the bytes
     *     of a listing; two nulls to those of the table's size.
     * @param identity Equal for loads of the same rows alone.
     * @param name What plans and Spark's UI call a scan.
     * @param root The address below which the gateway serves the files of the listings.
     * @param partitionSchema The partition columns.
     * @param deletionColumn The column by which the lane leaves out deleted rows.
     * @param moment The files' modification time, in milliseconds since the epoch.
     */
    public SharedTableIndex of(
            BiFunction lister, String identity, String name, String root, StructType partitionSchema, String deletionColumn,
            long moment) {
        SharedTableIndex index = new SharedTableIndex();
        index.lister = lister;
        index.identity = identity;
        index.name = name;
        index.root = new Path(root);
        index.partitionSchema = partitionSchema;
        index.deletionColumn = deletionColumn;
        index.moment = moment;
        return index;
    }

    /** Spark's own Parquet reader, for the relation over this index. */
    public ParquetFileFormat format() {
        return new Format(planned, name);
    }

    /**
     * Tells the index what each scan reads. What is sent to executors is made by Spark's own class, for they have none of
     * this one.
     */
    public static final class Format extends ParquetFileFormat {
        private final transient ThreadLocal planned;
        private final String name;

        Format(ThreadLocal planned, String name) {
            this.planned = planned;
            this.name = name;
        }

        /** Plans and Spark's UI call a scan by it. */
        public String shortName() {
            return name;
        }

        public Function1 buildReaderWithPartitionValues(
                org.apache.spark.sql.SparkSession session, StructType data, StructType partitions, StructType required,
                Seq filters, scala.collection.immutable.Map options, Configuration hadoop) {
            planned.set(required);
            return new ParquetFileFormat()
                    .buildReaderWithPartitionValues(session, data, partitions, required, filters, options, hadoop);
        }
    }

    public Seq rootPaths() {
        List paths = new ArrayList();
        paths.add(root);
        return asSeq(paths);
    }

    public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
        List filters = new ArrayList(CollectionConverters.asJava(partitionFilters));
        filters.addAll(CollectionConverters.asJava(dataFilters));
        BasePredicate keeps = partitionPredicate(partitionFilters);
        try {
            StructType required = (StructType) planned.get();
            planned.remove();
            Long rows = rowsNeeded(runningQuery(), partitionFilters, dataFilters);
            DataInputStream answer = ask(filters, "[" + rows + "," + (required == null ? null : required.json()) + "]", LISTING);
            String[][] hosts = new String[answer.readInt()][];
            for (int host = 0; host < hosts.length; host++) {
                hosts[host] = new String[] {answer.readUTF()};
            }
            Path directory = new Path(root.getParent(), answer.readUTF());
            int partitions = answer.readInt();
            int fields = partitionSchema.size();
            List directories = new ArrayList(partitions);
            for (int partition = 0; partition < partitions; partition++) {
                UnsafeRow values = new UnsafeRow(fields);
                byte[] row = new byte[answer.readInt()];
                answer.readFully(row);
                values.pointTo(row, row.length);
                FileStatus[] files = new FileStatus[answer.readInt()];
                boolean isKept = keeps == null || keeps.eval(values);
                for (int file = 0; file < files.length; file++) {
                    int number = answer.readInt();
                    long digest = answer.readLong();
                    long size = answer.readLong();
                    int host = answer.readShort();
                    if (isKept) {
                        Object[] parts = {Integer.valueOf(number), Long.valueOf(digest)};
                        String name = String.format(Locale.ROOT, "part-%06d-%016x.parquet", parts);
                        FileStatus status = new FileStatus(size, false, 1, 128L << 20, moment, new Path(directory, name));
                        files[file] = host < 0 ? status : new LocatedFileStatus(
                            status, new BlockLocation[] {new BlockLocation(hosts[host], hosts[host], 0, size)});
                    }
                }
                if (isKept) {
                    cleaner.register(values, new Held(lister));
                    directories.add(PartitionDirectory.apply(values, files));
                }
            }
            return asSeq(directories);
        } catch (IOException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    public String[] inputFiles() {
        List paths = new ArrayList();
        Iterator directories = listFiles(asSeq(new ArrayList()), asSeq(new ArrayList())).iterator();
        while (directories.hasNext()) {
            Iterator files = ((PartitionDirectory) directories.next()).files().iterator();
            while (files.hasNext()) {
                paths.add(((org.apache.spark.sql.execution.datasources.FileStatusWithMetadata) files.next()).getPath().toString());
            }
        }
        return (String[]) paths.toArray(new String[0]);
    }

    /** A load reads one version for its life. */
    public void refresh() {}

    public long sizeInBytes() {
        try {
            return ask(null, null, SIZE).readLong();
        } catch (IOException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    public StructType partitionSchema() {
        return partitionSchema;
    }

    public boolean equals(Object other) {
        return other instanceof SharedTableIndex && ((SharedTableIndex) other).identity.equals(identity);
    }

    public int hashCode() {
        return identity.hashCode();
    }

    public String toString() {
        return "SharedTableIndex(" + root + ")";
    }

    private DataInputStream ask(List filters, String needs, int kind) throws IOException {
        byte[] bytes = answerOf(callers.submit(new Question(lister, filters, needs, SparkSession.getActiveSession())));
        DataInputStream answer = new DataInputStream(new ByteArrayInputStream(bytes));
        int given = answer.readByte();
        if (given == FAILURE) {
            throw new RuntimeException(new String(bytes, 1, bytes.length - 1, StandardCharsets.UTF_8));
        }
        if (given != kind) {
            throw new IllegalStateException("an answer of kind " + given + " to a question of kind " + kind);
        }
        return answer;
    }

    /** Waits for an answer, interrupted or not: what ends the query ends the listing in Python. */
    private static byte[] answerOf(Future question) {
        boolean isInterrupted = false;
        try {
            while (true) {
                try {
                    return (byte[]) question.get();
                } catch (InterruptedException interrupted) {
                    isInterrupted = true;
                } catch (ExecutionException failed) {
                    throw new RuntimeException(failed.getCause().getMessage(), failed.getCause());
                }
            }
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /**
     * Keeps what answers for an index as long as Spark has a partition that it listed: an RDD, or rows that are being iterated over,
     * may outlive their DataFrame, and Python lets go of listings that nobody can ask for any more.
     */
    private static final class Held implements Runnable {
        private final BiFunction lister;

        Held(BiFunction lister) {
            this.lister = lister;
        }

        public void run() {}
    }

    /** A call of Python, in the session of the query that asks: expressions print themselves by its settings. */
    private static final class Question implements Callable {
        private final BiFunction lister;
        private final List filters;
        private final String needs;
        private final Option session;

        Question(BiFunction lister, List filters, String needs, Option session) {
            this.lister = lister;
            this.filters = filters;
            this.needs = needs;
            this.session = session;
        }

        public Object call() {
            if (session.isDefined()) {
                SparkSession.setActiveSession((SparkSession) session.get());
            }
            try {
                return lister.apply(filters, needs);
            } finally {
                SparkSession.clearActiveSession();
            }
        }
    }

    /** The partition filters as one predicate of a partition's values; null where there are none. */
    private BasePredicate partitionPredicate(Seq partitionFilters) {
        Expression all = null;
        Iterator filters = partitionFilters.iterator();
        while (filters.hasNext()) {
            Expression filter = (Expression) filters.next();
            all = all == null ? filter : new And(all, filter);
        }
        if (all == null) {
            return null;
        }
        List columns = new ArrayList();
        Iterator own = DataTypeUtils.toAttributes(partitionSchema).iterator();
        while (own.hasNext()) {
            NamedExpression column = (NamedExpression) own.next();
            Object attribute = column;
            Iterator referenced = all.references().iterator();
            while (referenced.hasNext()) {
                Attribute candidate = (Attribute) referenced.next();
                if (candidate.name().equals(column.name())) {
                    attribute = candidate;
                }
            }
            columns.add(attribute);
        }
        BasePredicate predicate = Predicate$.MODULE$.create(all, asSeq(columns));
        predicate.initialize(0);
        return predicate;
    }

    private boolean isUnfiltered(Seq filters) {
        for (int place = 0; place < filters.size(); place++) {
            if (!isOwn((Expression) filters.apply(place))) {
                return false;
            }
        }
        return true;
    }

    /** Whether a filter is the lane's own, which leaves out deleted rows. */
    private boolean isOwn(Expression filter) {
        if (!(filter instanceof IsNull)) {
            return false;
        }
        Expression column = ((IsNull) filter).child();
        return column instanceof Attribute && ((Attribute) column).name().equals(deletionColumn);
    }

    /** The query that this thread plans for; null where it is not known, or not optimized. */
    private static QueryExecution runningQuery() {
        String execution = SparkContext.getOrCreate().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
        QueryExecution query = execution == null ? null : SQLExecution.getQueryExecution(Long.parseLong(execution));
        return query == null || !query.tracker().phases().contains("optimization") ? null : query;
    }

    /**
     * The rows that a query needs at most of each of its scans of this table: null where it needs all, or
     * where its plan does not show all of its scans; -1 where it reads none of their columns, but those of partitions;
     * -2 where it reads not even these.
     *
     * @param query The query; null where it is not known.
     * @param partitionFilters The conjuncts of one of the scans on partition columns.
     * @param dataFilters Its other conjuncts.
     */
    public Long rowsNeeded(QueryExecution query, Seq partitionFilters, Seq dataFilters) {
        if (query == null || !isUnfiltered(dataFilters)) {
            return null;
        }
        LogicalPlan plan = query.optimizedPlan();
        if (plan.isStreaming()) {
            return null; // what the function of foreachBatch makes an RDD of is listed within the execution of its batch
        }
        boolean isWhole = partitionFilters.isEmpty();
        long[] most = new long[] {-1};
        if (isWhole && isBounded(plan, -1, most) && most[0] >= 0) {
            return Long.valueOf(most[0]);
        }
        boolean[] readsPartitions = new boolean[1];
        if (!isCounted(plan, null, readsPartitions)) {
            return null;
        }
        return Long.valueOf(isWhole && !readsPartitions[0] ? COUNTED_TOGETHER : COUNTED);
    }

    /**
     * Whether no scan of this table in a plan reads a column of its files.
     *
     * @param references The attributes that are read of what the plan gives; null where all may be.
     * @param readsPartitions Set to true where a scan reads a partition column.
     */
    private boolean isCounted(LogicalPlan plan, List references, boolean[] readsPartitions) {
        if (mayHideScans(plan) || plan instanceof Sample) { // which rows a sample has depends on the files that they lie in
            return false;
        }
        if (isOwnScan(plan)) {
            readsPartitions[0] |= references != null && !references.isEmpty();
            return references != null && areOfPartitions(references, plan);
        }
        List below = null;
        if ((plan instanceof Project || plan instanceof Aggregate) && isDeterministic(plan)) {
            below = new ArrayList();
            addAll(plan.references(), below);
        } else if (plan instanceof Filter && references != null && isDeterministic(plan)) {
            below = new ArrayList(references);
            addReferencesOfOthers(((Filter) plan).condition(), below);
        }
        Iterator children = plan.children().iterator();
        while (children.hasNext()) {
            if (!isCounted((LogicalPlan) children.next(), below, readsPartitions)) {
                return false;
            }
        }
        return true;
    }

    /** Whether a node of a plan may have scans that are not among its children: a cached relation, a command, a subquery. */
    private static boolean mayHideScans(LogicalPlan plan) {
        if (plan.children().isEmpty()) {
            return !(plan instanceof LogicalRelation || plan instanceof LocalRelation || plan instanceof OneRowRelation || plan instanceof Range);
        }
        return plan instanceof Command || !plan.subqueries().isEmpty();
    }

    private boolean isOwnScan(LogicalPlan plan) {
        Object relation = plan instanceof LogicalRelation ? ((LogicalRelation) plan).relation() : null;
        return relation instanceof HadoopFsRelation && equals(((HadoopFsRelation) relation).location());
    }

    /** Whether each attribute is a partition column of a relation. */
    private boolean areOfPartitions(List references, LogicalPlan relation) {
        List partitions = Arrays.asList(partitionSchema.fieldNames());
        for (int place = 0; place < references.size(); place++) {
            Attribute attribute = (Attribute) references.get(place);
            if (!relation.outputSet().contains(attribute) || !partitions.contains(attribute.name())) {
                return false;
            }
        }
        return true;
    }

    /** Whether all expressions of a node are: the name of the file that a row comes from, for one, is not. */
    private static boolean isDeterministic(LogicalPlan plan) {
        Iterator expressions = plan.expressions().iterator();
        while (expressions.hasNext()) {
            if (!((Expression) expressions.next()).deterministic()) {
                return false;
            }
        }
        return true;
    }

    /** Adds what a condition reads, but for the lane's own. */
    private void addReferencesOfOthers(Expression condition, List references) {
        if (condition instanceof And) {
            addReferencesOfOthers(((And) condition).left(), references);
            addReferencesOfOthers(((And) condition).right(), references);
        } else if (!isOwn(condition)) {
            addAll(condition.references(), references);
        }
    }

    private static void addAll(AttributeSet attributes, List references) {
        Iterator referenced = attributes.iterator();
        while (referenced.hasNext()) {
            references.add(referenced.next());
        }
    }

    /**
     * Whether every scan of this table in a plan is straight below a limit, or below projections that are.
     *
     * @param limit The rows that are needed of the plan; -1 for all.
     * @param most Where the largest number of rows that a scan needs is put.
     */
    private boolean isBounded(LogicalPlan plan, long limit, long[] most) {
        if (mayHideScans(plan)) {
            return false;
        }
        if (isOwnScan(plan)) {
            most[0] = Math.max(most[0], limit);
            return limit >= 0;
        }
        long below = -1;
        if (plan instanceof GlobalLimit) {
            below = fewer(limit, ((GlobalLimit) plan).limitExpr());
        } else if (plan instanceof LocalLimit) {
            below = fewer(limit, ((LocalLimit) plan).limitExpr());
        } else if (plan instanceof Project || plan instanceof Filter && isOwn(((Filter) plan).condition())) {
            below = limit;
        }
        Iterator children = plan.children().iterator();
        while (children.hasNext()) {
            if (!isBounded((LogicalPlan) children.next(), below, most)) {
                return false;
            }
        }
        return true;
    }

    private static long fewer(long limit, Expression rows) {
        long here = rows.foldable() ? ((Number) rows.eval(null)).longValue() : -1;
        return here < 0 || limit >= 0 && limit < here ? limit : here;
    }

    private static Seq asSeq(List elements) {
        return CollectionConverters.asScala(elements).toSeq();
    }
}
