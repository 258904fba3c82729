//! Metrics in Prometheus' text format. Every label comes from a closed list; no VM's name is ever one.

use prometheus::{Encoder, GaugeVec, Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

/// The operator's metrics.
pub struct Metrics {
    registry: Registry,
    reconciles: Option<IntCounterVec>,
    writes: Option<IntCounterVec>,
    seconds: Option<Histogram>,
    missing: Option<GaugeVec>,
    phases: Option<GaugeVec>,
    leader: Option<IntGauge>,
}

/// From a plan that finds nothing to do (well under a millisecond) to a write against a slow API server.
const SECONDS: [f64; 6] = [0.001, 0.01, 0.1, 0.5, 2.0, 10.0];

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers every metric. One whose definition the library refused would be missing from the output, which a
    /// test notices; it is never a reason to end the operator.
    pub fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels).ok()?;
            registry.register(Box::new(metric.clone())).ok()?;
            Some(metric)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            let metric = GaugeVec::new(Opts::new(name, help), labels).ok()?;
            registry.register(Box::new(metric.clone())).ok()?;
            Some(metric)
        };
        let seconds = Histogram::with_opts(
            HistogramOpts::new("wintune_reconcile_seconds", "Time to look at one VM once").buckets(SECONDS.to_vec()),
        )
        .ok();
        if let Some(seconds) = &seconds {
            let _ = registry.register(Box::new(seconds.clone()));
        }
        let leader = IntGauge::new("wintune_leader", "1 while this replica holds the lease").ok();
        if let Some(leader) = &leader {
            let _ = registry.register(Box::new(leader.clone()));
        }
        Self {
            reconciles: counter("wintune_reconciles_total", "Looks at a VM by what came of them", &["outcome"]),
            writes: counter(
                "wintune_writes_total",
                "Writes by what was written and the answer",
                &["target", "outcome"],
            ),
            missing: gauge(
                "wintune_crd_missing",
                "1 while a kind that the operator needs is not served",
                &["resource"],
            ),
            phases: gauge("wintune_vms", "Records by phase", &["phase"]),
            seconds,
            leader,
            registry,
        }
    }

    /// Counts one look at a VM.
    pub fn reconcile(&self, outcome: &'static str, seconds: f64) {
        if let Some(metric) = &self.reconciles {
            metric.with_label_values(&[outcome]).inc();
        }
        if let Some(metric) = &self.seconds {
            metric.observe(seconds);
        }
    }

    /// Counts one write.
    pub fn write(&self, target: &'static str, outcome: &'static str) {
        if let Some(metric) = &self.writes {
            metric.with_label_values(&[target, outcome]).inc();
        }
    }

    /// Says whether a kind is missing.
    pub fn missing(&self, resource: &'static str, missing: bool) {
        if let Some(metric) = &self.missing {
            metric.with_label_values(&[resource]).set(if missing { 1.0 } else { 0.0 });
        }
    }

    /// Says how many records are in a phase.
    pub fn phase(&self, phase: &'static str, count: usize) {
        if let Some(metric) = &self.phases {
            metric.with_label_values(&[phase]).set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
        }
    }

    /// Says whether this replica leads.
    pub fn leader(&self, leads: bool) {
        if let Some(metric) = &self.leader {
            metric.set(i64::from(leads));
        }
    }

    /// Everything as text.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_there() {
        let metrics = Metrics::new();
        metrics.reconcile("nothing", 0.1);
        metrics.write("vm", "ok");
        metrics.missing("virtualmachines", true);
        metrics.phase("Tuned", 3);
        metrics.leader(true);
        let text = metrics.text();
        for line in [
            "wintune_reconciles_total{outcome=\"nothing\"} 1",
            "wintune_writes_total{outcome=\"ok\",target=\"vm\"} 1",
            "wintune_crd_missing{resource=\"virtualmachines\"} 1",
            "wintune_vms{phase=\"Tuned\"} 3",
            "wintune_leader 1",
            "wintune_reconcile_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
