//! The TPM settings of one workload cluster, from a file.

use std::path::{Path, PathBuf};

use node_attestation_core::crd::TpmSettings;
use serde_json::Value;

use crate::error::{BoxError, explain};
use crate::file;

/// A few hundred machines' keys and states.
const MAX_FILE_LEN: usize = 1024 * 1024;

#[derive(Debug, clap::Args)]
#[command(
    next_help_heading = "One workload cluster of machines with a TPM, without a management cluster"
)]
pub(super) struct StandaloneTpmArguments {
    /// The policy on TPMs: YAML with endorsementKeys and pcrPolicy, as in `spec.tpm`.
    /// Without it, each machine's provider ID names its TPM by a digest, and any boot state is
    /// let in
    #[arg(long, value_name = "FILE", requires = "attestor")]
    tpm_settings: Option<PathBuf>,
}

impl StandaloneTpmArguments {
    /// The option for the evidence of TPMs, if it is given.
    pub(super) fn said_of_evidence(&self) -> Option<&'static str> {
        self.tpm_settings.is_some().then_some("--tpm-settings")
    }

    /// The settings.
    pub(super) fn settings(&self) -> Result<TpmSettings, BoxError> {
        let settings = self.tpm_settings.as_deref().map(read).transpose()?;
        Ok(settings.unwrap_or_default())
    }
}

fn read(path: &Path) -> Result<TpmSettings, BoxError> {
    let text = file::read("--tpm-settings", path, MAX_FILE_LEN)?;
    parse(path, &String::from_utf8_lossy(&text))
}

fn parse(path: &Path, text: &str) -> Result<TpmSettings, BoxError> {
    let option = format!("--tpm-settings {}", path.display());
    let syntax =
        |error: serde_saphyr::Error| explain(format!("{option} is not what `spec.tpm` is"))(error);
    let settings: TpmSettings = serde_saphyr::from_str(text).map_err(syntax)?;
    let written: Value = serde_saphyr::from_str(text).map_err(syntax)?;
    // In a resource the API server drops what it does not know, and says so; here a misspelt policy
    // would be none.
    let understood = serde_json::to_value(&settings).unwrap_or_default();
    match unknown(&written, &understood) {
        Some(field) => Err(format!("{option}: there is no field {field}").into()),
        None => Ok(settings),
    }
}

/// The first field that was written and not understood.
fn unknown(written: &Value, understood: &Value) -> Option<String> {
    match (written, understood) {
        (Value::Object(written), Value::Object(understood)) => {
            written.iter().find_map(|(name, value)| {
                let Some(known) = understood.get(name) else {
                    return Some(name.clone());
                };
                unknown(value, known).map(|field| format!("{name}.{field}"))
            })
        }
        (Value::Array(written), Value::Array(understood)) => written
            .iter()
            .zip(understood)
            .find_map(|(one, known)| unknown(one, known)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::errors::error_chain;
    use node_attestation_core::crd::EndorsementKeyPlatform;

    use super::*;

    fn parsed(text: &str) -> Result<TpmSettings, String> {
        parse(Path::new("tpm.yaml"), text).map_err(|error| error_chain(&*error))
    }

    #[test]
    fn all_of_it_is_read() {
        let digest = "0f".repeat(32);
        let settings = parsed(&format!(
            "endorsementKeys:\n  platform: aws\n  allowList:\n  - {{machine: m1, ekSha256: {digest}}}\n\
             \x20 - {{providerID: metal3://metal/host-7/, ekSha256: {digest}}}\n\
             pcrPolicy:\n  allowed:\n  - 7: {digest}\n    \"4\": {digest}\n"
        ));

        let settings = settings.unwrap();
        let keys = settings.endorsement_keys;
        assert_eq!(keys.platform, EndorsementKeyPlatform::Aws);
        let [machine, host] = keys.allow_list.try_into().unwrap();
        assert_eq!(machine.machine.as_deref(), Some("m1"));
        assert_eq!(host.provider_id.as_deref(), Some("metal3://metal/host-7/"));
        assert_eq!([machine.ek_sha256, host.ek_sha256], [&*digest, &digest]);
        let registers: Vec<_> = settings.pcr_policy.allowed[0].keys().collect();
        assert_eq!(registers, ["4", "7"]);
    }

    #[test]
    fn nothing_said_is_what_a_resource_has_by_default() {
        assert_eq!(parsed("{}"), Ok(TpmSettings::default()));
    }

    #[test]
    fn a_misspelt_field_is_named_and_not_passed_over() {
        for (text, field) in [
            ("pcrPolcy: {allowed: []}", "pcrPolcy"),
            ("pcrPolicy: {mode: Enforce}", "pcrPolicy.mode"),
            ("pcrPolicy: {allow: []}", "pcrPolicy.allow"),
            (
                "endorsementKeys: {allowList: [{machine: a, ekSha256: b, x: 1}]}",
                "endorsementKeys.allowList.x",
            ),
        ] {
            let expected = format!("--tpm-settings tpm.yaml: there is no field {field}");
            assert_eq!(parsed(text), Err(expected));
        }
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_place() {
        let error = parsed("endorsementKeys:\n  platform: AWS\n").unwrap_err();

        assert!(error.contains("is not what `spec.tpm` is"), "{error}");
        assert!(error.contains("line 2"), "{error}");
    }
}
