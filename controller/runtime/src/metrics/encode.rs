//! Encodes all metrics as text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use node_attestation_core::time::since_epoch;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text,
    text as openmetrics,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::catalogue::{self, Metric};
use super::clusters::ClusterValues;
use super::process::Usage;
use super::{Format, Inner, NO_STATUS};
use crate::clock::now;

type Labels = Vec<(&'static str, String)>;

/// The time series of a gauge or a counter.
type Series = Vec<(Labels, f64)>;

/// All metrics as text.
pub(super) fn text(inner: &Arc<Inner>, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(inner.clone())));
    let mut text = String::new();
    let written = match format {
        Format::OpenMetrics => openmetrics::encode(&mut text, &registry),
        Format::Prometheus => prometheus_text::encode(&mut text, &registry),
    };
    // A write to a string cannot fail.
    written.map(|()| text).unwrap_or_default()
}

#[derive(Debug)]
struct Snapshot(Arc<Inner>);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let inner = &*self.0;
        let version = [("version", inner.version)];
        describe(&mut encoder, &catalogue::BUILD)?.encode_info(&version)?;
        let families: [(&Metric, &dyn EncodeMetric); 9] = [
            (&catalogue::CSRS, &inner.csrs),
            (&catalogue::CSR_DURATION, &inner.durations),
            (&catalogue::TERMS, &inner.terms),
            (&catalogue::WATCH_FAILURES, &inner.watch_failures),
            (&catalogue::RECORD_WRITES, &inner.record_writes),
            (&catalogue::STATUS_WRITES, &inner.status_writes),
            (&catalogue::CLOUD, &inner.cloud_requests),
            (&catalogue::SIGNER, &inner.signer_requests),
            (&catalogue::SIGNER_DURATION, &inner.signer_durations),
        ];
        for (metric, family) in families {
            if !family.is_empty() {
                family.encode(describe(&mut encoder, metric)?)?;
            }
        }
        let problems = inner.signer_problems.load(Ordering::Relaxed);
        if problems != NO_STATUS {
            describe(&mut encoder, &catalogue::SIGNER_PROBLEMS)?.encode_gauge(&problems)?;
        }
        clusters(&mut encoder, inner)?;
        leases(&mut encoder, inner)?;
        watches(&mut encoder, inner)?;
        process(&mut encoder, Usage::now(), inner.started)
    }
}

fn describe<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'a Metric,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(metric.base, metric.help, None, metric.kind)
}

fn series(encoder: &mut DescriptorEncoder<'_>, metric: &Metric, all: Series) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    let mut encoder = describe(encoder, metric)?;
    for (labels, value) in all {
        let mut one = encoder.encode_family(&labels)?;
        if metric.kind == MetricType::Counter {
            one.encode_counter::<NoLabelSet, f64, f64>(&value, None)?;
        } else {
            one.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn clusters(encoder: &mut DescriptorEncoder<'_>, inner: &Inner) -> fmt::Result {
    let now = unix(now());
    let mut phases: BTreeMap<&str, u32> = BTreeMap::new();
    let [
        mut pending,
        mut oldest,
        mut conditions,
        mut records,
        mut expiries,
        mut overdue,
        mut exempt,
        mut overlaps,
        mut approvals,
        mut vendors,
        mut unmeasured,
        mut denials,
    ] = [const { Series::new() }; 12];
    let left_out = inner.left_out.load(Ordering::Relaxed);
    if left_out > 0 {
        phases.insert("stopped", u32::try_from(left_out).unwrap_or(u32::MAX));
    }
    let all = inner.clusters.all();
    // A recreated cluster can occur twice.
    let all: BTreeMap<_, _> = all.iter().map(|one| (one.labels(), one)).collect();
    for cluster in all.into_values() {
        let state = cluster.state();
        let labels = |more: &[(&'static str, &str)]| -> Labels {
            let more = more
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()));
            cluster.labels().into_iter().chain(more).collect()
        };
        if let Some(phase) = state.phase {
            *phases.entry(phase).or_default() += 1;
        }
        if let Some(requests) = &state.pending {
            let (count, created) = requests.summary();
            pending.push((labels(&[]), number(count)));
            let age = created.map_or(0.0, |created| (now - seconds(created)).max(0.0));
            oldest.push((labels(&[]), age));
        }
        for (of, status) in state.conditions {
            conditions.push((labels(&[("type", of), ("status", status)]), 1.0));
        }
        if let Some((live, tombstones)) = state.records {
            for (of, count) in [("live", live), ("tombstone", tombstones)] {
                records.push((labels(&[("state", of)]), f64::from(count)));
            }
        }
        if let Some(expiry) = state.earliest_expiry {
            expiries.push((labels(&[]), unix(expiry)));
        }
        if let Some(count) = state.overdue {
            overdue.push((labels(&[]), number(count)));
        }
        if let Some(count) = state.exempt {
            exempt.push((labels(&[]), number(count)));
        }
        if let Some(count) = state.overlaps {
            overlaps.push((labels(&[]), number(count)));
        }
        for (approver, count) in &state.approvals {
            approvals.push((labels(&[("approver", approver)]), number(*count)));
        }
        for (reason, count) in state.denials {
            denials.push((labels(&[("reason", reason)]), number(count)));
        }
        if let Some(end) = state.expiring {
            vendors.push((labels(&[]), unix(end)));
        }
        if let Some(count) = state.unmeasured {
            unmeasured.push((labels(&[]), number(count)));
        }
    }
    let phases = phases.into_iter();
    let phases = phases.map(|(phase, count)| (vec![("phase", phase.to_owned())], count.into()));
    series(encoder, &catalogue::CLUSTERS, phases.collect())?;
    series(encoder, &catalogue::PENDING, pending)?;
    series(encoder, &catalogue::OLDEST_PENDING, oldest)?;
    series(encoder, &catalogue::CONDITION, conditions)?;
    series(encoder, &catalogue::RECORDS, records)?;
    series(encoder, &catalogue::EARLIEST_EXPIRY, expiries)?;
    series(encoder, &catalogue::OVERDUE, overdue)?;
    series(encoder, &catalogue::EXEMPT, exempt)?;
    series(encoder, &catalogue::OVERLAPS, overlaps)?;
    series(encoder, &catalogue::OTHER_APPROVALS, approvals)?;
    series(encoder, &catalogue::DENIALS, denials)?;
    series(encoder, &catalogue::VENDOR_EXPIRY, vendors)?;
    series(encoder, &catalogue::UNMEASURED, unmeasured)
}

fn leases(encoder: &mut DescriptorEncoder<'_>, inner: &Inner) -> fmt::Result {
    // A Lease that was just released or acquired can occur twice.
    let mut known: BTreeMap<String, Option<f64>> = BTreeMap::new();
    for lease in inner.leases.all() {
        let age = known.entry(lease.name().to_owned()).or_default();
        *age = age.or(lease.age());
    }
    let [mut held, mut ages] = [const { Series::new() }; 2];
    for (name, age) in known {
        let labels = vec![("lease", name)];
        ages.extend(age.map(|age| (labels.clone(), age)));
        held.push((labels, f64::from(u8::from(age.is_some()))));
    }
    series(encoder, &catalogue::LEADER, held)?;
    series(encoder, &catalogue::LEASE_AGE, ages)
}

/// Encodes the worst state for each kind and cluster, because a kind can have several watches at the end of a term.
fn watches(encoder: &mut DescriptorEncoder<'_>, inner: &Inner) -> fmt::Result {
    let mut worst: BTreeMap<Labels, (bool, f64)> = BTreeMap::new();
    for watch in inner.watches.all() {
        let mut labels = vec![("kind", watch.kind().to_owned())];
        labels.extend(watch.cluster().into_iter().flat_map(ClusterValues::labels));
        let (holds, age) = worst.entry(labels).or_insert((true, 0.0));
        *holds &= watch.holds();
        *age = age.max(watch.age());
    }
    let up = worst.iter();
    let up = up.map(|(labels, (holds, _))| (labels.clone(), f64::from(u8::from(*holds))));
    series(encoder, &catalogue::WATCH_UP, up.collect())?;
    let ages = worst.into_iter().map(|(labels, (_, age))| (labels, age));
    series(encoder, &catalogue::WATCH_AGE, ages.collect())
}

fn process(encoder: &mut DescriptorEncoder<'_>, usage: Usage, started: SystemTime) -> fmt::Result {
    if let Some(cpu) = usage.cpu_seconds {
        describe(encoder, &catalogue::CPU)?.encode_counter::<NoLabelSet, f64, f64>(&cpu, None)?;
    }
    let open = usage.open_files.and_then(|open| u64::try_from(open).ok());
    for (metric, value) in [
        (&catalogue::RESIDENT, usage.resident_bytes),
        (&catalogue::VIRTUAL, usage.virtual_bytes),
        (&catalogue::THREADS, usage.threads),
        (&catalogue::OPEN_FILES, open),
        (&catalogue::MAX_FILES, usage.max_files),
    ] {
        if let Some(value) = value {
            describe(encoder, metric)?.encode_gauge(&value)?;
        }
    }
    describe(encoder, &catalogue::STARTED)?.encode_gauge(&unix(started))
}

/// The seconds since 1970. 0 for an earlier time.
fn unix(time: SystemTime) -> f64 {
    since_epoch(time).as_secs_f64()
}

fn seconds(unix: i64) -> f64 {
    let seconds = u64::try_from(unix).unwrap_or_default();
    std::time::Duration::from_secs(seconds).as_secs_f64()
}

fn number(count: usize) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}
