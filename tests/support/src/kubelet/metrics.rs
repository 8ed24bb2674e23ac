/// A kubelet's metrics at one point in time, in the text format of Prometheus.
#[derive(Debug, Clone)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self {
            text: String::from_utf8_lossy(bytes).into_owned(),
        }
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The sum of the metric's samples that have all these labels. Zero if no sample has them.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.text
            .lines()
            .filter_map(|line| sample(line, name, labels))
            // `sum` is not used, because the sum of an empty sequence is minus zero.
            .fold(0.0, |sum, value| sum + value)
    }
}

/// The value of `line`, if it is a sample of this metric with these labels.
fn sample(line: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let (given, value) = match rest.strip_prefix('{') {
        Some(rest) => rest.rsplit_once("} ")?,
        None => ("", rest.strip_prefix(' ')?),
    };
    let has = |(key, value): &(&str, &str)| {
        let wanted = format!("{key}=\"{value}\"");
        given
            .match_indices(&wanted)
            .any(|(at, _)| at == 0 || given[..at].ends_with(','))
    };
    labels.iter().all(has).then_some(())?;
    value.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"# HELP calls_total Calls.\n\
        calls_total{call_status=\"failed\",code=\"7\"} 3\n\
        calls_total{call_status=\"failed\",code=\"17\"} 4\n\
        calls_total_created 1e9\n\
        ttl_seconds +Inf\n";

    #[test]
    fn samples_are_chosen_by_whole_name_and_whole_labels() {
        let metrics = Metrics::new(TEXT);

        for (name, labels, expected) in [
            ("calls_total", &[][..], 7.0),
            ("calls_total", &[("code", "7")], 3.0),
            (
                "calls_total",
                &[("call_status", "failed"), ("code", "17")],
                4.0,
            ),
            ("calls_total", &[("status", "failed")], 0.0),
            ("calls", &[], 0.0),
            ("ttl_seconds", &[], f64::INFINITY),
        ] {
            let sum = metrics.sum(name, labels);
            assert!(
                sum.total_cmp(&expected).is_eq(),
                "{name}{labels:?} is {sum}"
            );
        }
    }
}
