//! The commands `doctor` and `identify`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_attestation::names::NodeName;
use kubelet_attestation::page_url;
use kubelet_attestation::text::visible;
use serde_json::{Map, Value, json};

use super::arguments::{Arguments, OutputFormat};
use super::{Session, answer, leftovers};
use crate::attester::Identity;
use crate::authenticator::{Authenticator, Caller, Cluster};
use crate::clock::Deadline;
use crate::doctor::{Checked, Doctor, TOTAL, Unit, UnitUnknown};
use crate::failure::{Code, Failure};
use crate::finding::{Finding, State};
use crate::kube::kubeconfig::Kubeconfig;
use crate::leftovers::Leftovers;
use crate::settings::{self, Settings};
use crate::sheet::wrap;

/// The documentation page of the checks. Each check has an anchor with its name.
const PAGE: &str = page_url!("doctor-checks.md#doctor-");

/// The width of the column with the state, including the space after it.
const MARGIN: usize = 6;

impl Session {
    pub(super) fn examine(
        &self,
        arguments: &Arguments,
        kubelet_kubeconfig: &Path,
        output: OutputFormat,
    ) -> Result<(), Failure> {
        let total = Deadline::after(TOTAL);
        let checks = self.checks(arguments, kubelet_kubeconfig, Unit::read(), total);
        answer::print(&match output {
            OutputFormat::Table => table(&checks),
            OutputFormat::Json => answer::json(&to_json(&checks)),
            OutputFormat::Yaml => answer::yaml(&to_json(&checks)),
        })?;
        let mut failing = checks.iter().filter(|check| is(check, State::Fail));
        match failing.next() {
            None => Ok(()),
            Some((name, _)) => {
                let what = format!("{} of {} checks failed", failing.count() + 1, checks.len());
                let cure = format!("fix the failed checks in order, beginning with {name}");
                Err(Failure::new(Code::CheckFailed, what, cure))
            }
        }
    }

    /// Runs every check, until the deadline `total`.
    pub(super) fn checks(
        &self,
        arguments: &Arguments,
        kubelet_kubeconfig: &Path,
        unit: Result<Unit, UnitUnknown>,
        total: Deadline,
    ) -> Vec<Checked> {
        let mut leftovers = leftovers();
        if let Ok(unit) = &unit {
            leftovers = leftovers.in_environment(unit.variables());
        }
        let leftovers = leftovers.in_kubeconfig(kubelet_kubeconfig);
        let sources = Self::sources(arguments);
        let files = settings::files(&sources);
        let (settings, fault) = Settings::valid(sources, &self.schema);
        let finding = match (fault, files) {
            (Some(fault), _) => Finding::fail(&fault.into()),
            (None, Err(failure)) => Finding::fail(&failure),
            (None, Ok(files)) => found(&files, &leftovers),
        };
        let endpoint = Kubeconfig::read_endpoint_of_plugin(kubelet_kubeconfig);
        let doctor = Doctor {
            authenticator: Authenticator {
                attester: Arc::clone(&self.attester),
                settings,
                fault: None,
                cluster: endpoint.map(|endpoint| Cluster::Checked(endpoint.into())),
                machine: self.machine.clone(),
                caller: Caller::Person,
                rescue: self.rescue.clone(),
                log: self.log,
                observer: None,
            },
            settings: finding,
            kubelet_kubeconfig: kubelet_kubeconfig.to_owned(),
            unit,
        };
        doctor.examine(total)
    }

    pub(super) fn identify(
        &self,
        arguments: &Arguments,
        output: OutputFormat,
    ) -> Result<(), Failure> {
        let (node_name, identity) = self.interactive(arguments)?.identify()?;
        let provider = self.attester.provider();
        let json = || identity_json(provider.as_str(), &node_name, &identity);
        let text = match output {
            OutputFormat::Table => identity_table(provider.as_str(), &node_name, &identity),
            OutputFormat::Json => answer::json(&json()),
            OutputFormat::Yaml => answer::yaml(&json()),
        };
        answer::print(&text)
    }
}

/// The finding for valid settings from these files.
fn found(files: &[PathBuf], leftovers: &Leftovers) -> Finding {
    if let Some(failure) = leftovers.failure() {
        return Finding::warn(&failure);
    }
    let files: Vec<_> = files.iter().map(|path| path.to_string_lossy()).collect();
    Finding::pass(if files.is_empty() {
        "valid (defaults, no file)".to_owned()
    } else {
        format!("valid: {}", files.join(", "))
    })
}

fn is((_, finding): &Checked, state: State) -> bool {
    finding.state == state
}

fn table(checks: &[Checked]) -> String {
    let mut text = String::new();
    for (name, finding) in checks {
        let state = finding.state.as_str();
        wrap(
            &format!("{state}  "),
            MARGIN,
            &format!("{name}: {}", finding.what),
            &mut text,
        );
        if !finding.cure.is_empty() {
            wrap("", MARGIN, &format!("cure: {}", finding.cure), &mut text);
        }
        if matches!(finding.state, State::Warn | State::Fail) {
            // Do not wrap the URL, even if it is longer than a line.
            text.extend([&" ".repeat(MARGIN), "see: ", PAGE, name, "\n"]);
        }
    }
    let counts: Vec<_> = [State::Pass, State::Warn, State::Fail, State::Skip]
        .into_iter()
        .map(|state| {
            (
                state,
                checks.iter().filter(|check| is(check, state)).count(),
            )
        })
        .map(|(state, count)| format!("{count} {}", state.as_str()))
        .collect();
    text.extend([
        "\n",
        &checks.len().to_string(),
        " checks: ",
        &counts.join(", "),
        "\n",
    ]);
    text
}

pub(super) fn to_json(checks: &[Checked]) -> Value {
    let failing = checks.iter().filter(|check| is(check, State::Fail)).count();
    let checks = checks.iter().map(|(name, finding)| {
        json!({
            "name": name,
            "state": finding.state.as_str(),
            "finding": finding.what,
            "cure": finding.cure,
            "link": format!("{PAGE}{name}"),
        })
    });
    json!({"failing": failing, "checks": checks.collect::<Vec<_>>()})
}

fn identity_table(provider: &str, node_name: &NodeName, identity: &Identity) -> String {
    let id = identity.provider_id.as_str();
    let mut rows = vec![
        ("Provider", provider),
        ("Provider ID", id),
        ("Node", node_name.as_str()),
    ];
    let facts = identity.facts.iter();
    rows.extend(facts.map(|fact| (fact.name, fact.value.as_str())));
    let width = rows.iter().map(|(name, _)| name.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for (name, value) in rows {
        let value = visible(value);
        text.extend([format!("{name:width$}  {value}").as_str(), "\n"]);
    }
    if let Some(digest) = &identity.endorsement_key {
        text.extend([
            "\nEntry for the controller's list of endorsement keys:\n",
            digest,
            ": ",
            id,
            "\n",
        ]);
    }
    text
}

fn identity_json(provider: &str, node_name: &NodeName, identity: &Identity) -> Value {
    let id = identity.provider_id.as_str();
    let mut object = Map::new();
    object.insert("provider".to_owned(), provider.into());
    object.insert("providerID".to_owned(), id.into());
    object.insert("nodeName".to_owned(), node_name.as_str().into());
    for fact in &identity.facts {
        object.insert(fact.key.to_owned(), fact.value.as_str().into());
    }
    if let Some(digest) = &identity.endorsement_key {
        object.insert("endorsementKeys".to_owned(), json!({digest: id}));
    }
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(state: State, what: &str, cure: &str) -> Finding {
        let (what, cure) = (what.to_owned(), cure.to_owned());
        Finding { state, what, cure }
    }

    #[test]
    fn the_doctor_table_has_80_columns_and_the_number_of_results() {
        let refused = "https://10.0.0.1:6443 does not accept the credential (401 Unauthorized): \
                       token expired";
        let cure = "give this machine a new bootstrap token; tokens expire, usually after a day";
        let checks = [
            (
                "settings",
                finding(State::Pass, "valid (defaults, no file)", ""),
            ),
            ("bootstrap-kubeconfig", finding(State::Fail, refused, cure)),
            (
                "state-directory",
                finding(State::Warn, "not there", "run `renew`"),
            ),
            ("lock", finding(State::Skip, "run as root", "")),
        ];

        let page = page_url!("doctor-checks.md");
        let expected = format!(
            "\
pass  settings: valid (defaults, no file)
fail  bootstrap-kubeconfig: https://10.0.0.1:6443 does not accept the credential
      (401 Unauthorized): token expired
      cure: give this machine a new bootstrap token; tokens expire, usually
      after a day
      see: {page}#doctor-bootstrap-kubeconfig
warn  state-directory: not there
      cure: run `renew`
      see: {page}#doctor-state-directory
skip  lock: run as root

4 checks: 1 pass, 1 warn, 1 fail, 1 skip
"
        );
        assert_eq!(table(&checks), expected);
    }

    #[test]
    fn only_a_longer_word_exceeds_80_columns() {
        let mut text = String::new();
        let long = "x".repeat(90);

        wrap(
            "fail  ",
            MARGIN,
            &format!("name: {} {long} end", "word ".repeat(20)),
            &mut text,
        );

        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("fail  name: word") && lines[0].len() <= 80);
        assert!(lines[1].starts_with("      word"), "{text}");
        assert_eq!(lines[2].trim_start(), long);
        assert_eq!(lines[3], "      end");
    }
}
