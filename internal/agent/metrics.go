package agent

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/sync/forward"
	"scanonce/window"
)

// metrics holds the process's figures. No label ever holds a key, an item or a serial number.
type metrics struct {
	registry *prometheus.Registry

	frames, rejected, notAccepted, voided, suppressed, batches *prometheus.CounterVec
	captured, committed, control                               prometheus.Counter
	accept, commit                                             prometheus.Histogram
}

func newMetrics(version string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	vec := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "scanonce_" + name, Help: help}, []string{label})
		m.registry.MustRegister(c)
		return c
	}
	one := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "scanonce_" + name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	hist := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "scanonce_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18)})
		m.registry.MustRegister(h)
		return h
	}
	m.frames = vec("frames_total", "Messages heard from scanners.", "scanner")
	m.captured = one("scans_captured_total", "Scans made durable, local duplicates included.")
	m.committed = one("scans_committed_total", "Movements in the ledger.")
	m.suppressed = vec("scans_suppressed_total", "Transmissions that repeat a movement of the ledger.", "reason")
	m.rejected = vec("scans_rejected_total", "Messages whose content was refused.", "reason")
	m.notAccepted = vec("scans_not_accepted_total", "Scans that could not be made durable and were refused.", "reason")
	m.control = one("scans_control_total", "Command barcodes, labels and unknown text.")
	m.voided = vec("scans_voided_total", "Messages dropped unread.", "reason")
	m.batches = vec("batches_total", "Runs of scans out of a scanner's memory; repeat tells those of which at least a part came before.", "repeat")
	m.accept = hist("accept_seconds", "From a frame's last byte to its acceptance.")
	m.commit = hist("commit_seconds", "From a frame's last byte to its row in the ledger.")
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "scanonce_build_info", Help: "The running build."}, []string{"version", "goversion"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(build, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// collect adds what is read at each scrape from the rooms' own snapshots.
func (m *metrics) collect(a *agent) { m.registry.MustRegister(&snapshot{a}) }

type snapshot struct{ a *agent }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("scanonce_"+name, help, labels, nil)
}

// Describe sends nothing: the collector is unchecked, since scanners and alarms come and go.
func (s *snapshot) Describe(chan<- *prometheus.Desc) {}

// Collect reads the snapshots.
func (s *snapshot) Collect(ch chan<- prometheus.Metric) {
	a := s.a
	gauge := func(v float64, d *prometheus.Desc, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(v float64, d *prometheus.Desc, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	flag := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	st, fs, clock, now := a.spool.Stats(), a.forward.Stats(), a.clock.Stats(), a.clock.Now()
	gauge(float64(st.Pending), desc("scans_pending", "Captured scans without a final answer."))
	gauge(float64(st.Held), desc("scans_held", "Captured scans of repeated batches that wait for a person."))
	gauge(float64(st.Quarantined), desc("scans_quarantined", "Captured scans that the ledger refuses for good."))
	for _, l := range []forward.Link{forward.Online, forward.Offline, forward.Reconciling} {
		gauge(flag(fs.Link == l), desc("state", "How the agent stands with the ledger.", "state"), string(l))
	}
	gauge(float64(st.Unsettled), desc("spool_records", "Unsettled records."))
	gauge(float64(st.Bytes), desc("spool_bytes", "Bytes of the spool on disk."))
	gauge(st.Fill(), desc("spool_fill_ratio", "How full the spool is, 0 to 1."))
	gauge(float64(age(now.T, st.Oldest))/1e3, desc("spool_oldest_age_seconds", "Age of the oldest unsettled scan."))
	stores := a.stores()
	for name, st := range map[string]*api.StoreStatus{"redis": stores.Redis, "postgres": stores.Postgres, "dynamodb": stores.DynamoDB} {
		if st != nil {
			gauge(flag(st.OK), desc("store_up", "Whether the store answers.", "store"), name)
		}
	}
	journal := a.spool.Journal()
	conflicts, _ := journal.ConflictCounts()
	gauge(float64(conflicts), desc("conflicts", "Queued operations on claims and cases that could not be carried out."))
	gauge(float64(journal.Pending()), desc("operations_pending", "Operations on claims and cases that wait for a store."))
	claims := desc("claims_total", "Answers to claims.", "result")
	counter(float64(fs.Won), claims, "won")
	counter(float64(fs.Held), claims, "held")
	counter(float64(fs.Unknown), claims, "unknown")
	counter(float64(fs.AmbiguousWinners), desc("ambiguous_winners_total", "Scans whose keys two different rows hold; the clocks or policies of two agents differ."))
	typed := a.wedge.stats()
	counter(float64(typed.Typed), desc("wedge_typed_total", "Accepted scans that were typed."))
	counter(float64(typed.Lost), desc("wedge_lost_total", "Accepted scans that could not be typed."))
	for _, d := range a.fleet.stats() {
		gauge(flag(d.State == device.Reading), desc("device_up", "Whether the scanner is open.", "scanner"), d.Scanner)
		counter(float64(d.Dropped), desc("frames_dropped_total", "Messages that found the queue full.", "scanner"), d.Scanner)
		counter(float64(d.Lost), desc("device_reports_lost_total", "Reports of a HID scanner that were lost on their way; each voided its scan.", "scanner"), d.Scanner)
		counter(float64(d.Crashes), desc("device_crashes_total", "Failures of the process that reads a HID scanner.", "scanner"), d.Scanner)
	}
	gauge(clock.Offset.Seconds(), desc("clock_offset_seconds", "Reference minus normalized time at the last comparison."))
	for _, q := range []window.Quality{window.Synced, window.Holdover, window.Unsynced} {
		gauge(flag(clock.Quality == q), desc("clock_quality", "What stands behind the clock.", "quality"), q.String())
	}
	codes := map[string]int{}
	for _, al := range a.alarms.list() {
		codes[al.Code]++
	}
	for code, n := range codes {
		gauge(float64(n), desc("alarms", "Alarms that are up.", "code"), code)
	}
}
