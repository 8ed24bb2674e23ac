//! The values that the controller reads from a Cluster's Secrets.

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::BASE64;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kubelet_attestation::kubeconfig::Policy;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::ca::{MAX_CERTIFICATE_LEN, MAX_KEY_LEN};
use crate::watch::read_alone;

/// The key of the kubeconfig in its Secret (Cluster API's contract).
pub(crate) const KUBECONFIG_KEY: &str = "value";

/// The keys of the certificate and the private key in a CA Secret.
pub(crate) const CA_KEYS: [&str; 2] = ["tls.crt", "tls.key"];

/// A Secret of a Cluster, with only the values that the controller reads.
///
/// A Secret is kept as long as its Cluster exists, and a tenant can write any number of keys into it. Other keys are
/// skipped during decoding, because 1 MB of empty values would take ten times as much memory. A value that is too long
/// is truncated to one byte more than its limit, so that its reader rejects it.
#[derive(Clone)]
pub(crate) struct SecretValues(Secret);

read_alone! {
    "Secret of a Cluster" => SecretValues,
}

impl SecretValues {
    /// Returns a Secret with only these values.
    pub(crate) fn only(self, keys: &[&str]) -> Secret {
        let Self(mut secret) = self;
        if let Some(data) = &mut secret.data {
            data.retain(|key, _| keys.contains(&key.as_str()));
        }
        secret
    }
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretValues")
    }
}

/// The encoded values. Unknown fields are skipped.
#[derive(Deserialize)]
struct Encoded {
    value: Option<String>,
    #[serde(rename = "tls.crt")]
    certificate: Option<String>,
    #[serde(rename = "tls.key")]
    key: Option<String>,
}

#[derive(Deserialize)]
struct Encoding {
    data: Option<Encoded>,
}

impl<'de> Deserialize<'de> for SecretValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Encoding { data } = Encoding::deserialize(deserializer)?;
        let Some(encoded) = data else {
            return Ok(Self(Secret::default()));
        };
        let [certificate, key] = CA_KEYS;
        let values = [
            (KUBECONFIG_KEY, encoded.value, Policy::Tenant.max_len()),
            (certificate, encoded.certificate, MAX_CERTIFICATE_LEN),
            (key, encoded.key, MAX_KEY_LEN),
        ];
        let mut data = BTreeMap::new();
        for (name, text, max) in values {
            if let Some(text) = text {
                let bytes = decoded(&text, max)
                    .ok_or_else(|| D::Error::custom(format_args!("{name} is not base64")))?;
                data.insert(name.to_owned(), ByteString(bytes));
            }
        }
        Ok(Self(Secret {
            data: Some(data),
            ..Secret::default()
        }))
    }
}

/// The decoded value, truncated to one byte more than `max`. `None` if it is not base64.
fn decoded(text: &str, max: usize) -> Option<Vec<u8>> {
    // In base64, four characters represent three bytes.
    let enough = text.get(..(max / 3 + 1) * 4).unwrap_or(text);
    let mut bytes = BASE64.decode(enough.as_bytes()).ok()?;
    bytes.truncate(max + 1);
    bytes.shrink_to_fit();
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::capi::{CaRefused, ClusterCa};
    use crate::watch::Lenient;

    fn read(data: &Value) -> Result<SecretValues, String> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "prod-1-ca"}, "data": data,
        });
        let read: Lenient<SecretValues, Secret> =
            serde_json::from_str(&secret.to_string()).unwrap();
        read.object.map_err(|error| error.to_string())
    }

    fn all(secret: SecretValues) -> BTreeMap<String, ByteString> {
        secret.only(&["value", "tls.crt", "tls.key"]).data.unwrap()
    }

    #[test]
    fn only_used_secret_values_are_kept() {
        let used = json!({"value": "YQ==", "tls.crt": "YmI=", "tls.key": "Y2Nj"});
        let kept = all(read(&used).unwrap());
        let expected = [("value", "a"), ("tls.crt", "bb"), ("tls.key", "ccc")];
        let expected = expected.map(|(key, value)| (key.to_owned(), ByteString(value.into())));
        assert_eq!(kept, expected.into());

        let mut data: Map<String, Value> = used.as_object().unwrap().clone();
        data.extend((0..150_000).map(|number| (format!("key-{number}"), json!(""))));
        data.insert("other".to_owned(), json!(["not text"]));
        assert_eq!(all(read(&data.into()).unwrap()), kept);
        assert!(read(&Value::Null).unwrap().only(&["value"]).data.is_none());
    }

    #[test]
    fn each_reader_gets_only_its_secret_values() {
        let used =
            || read(&json!({"value": "YQ==", "tls.crt": "YmI=", "tls.key": "Y2Nj"})).unwrap();
        let keys = |secret: Secret| secret.data.unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(keys(used().only(&[KUBECONFIG_KEY])), ["value"]);
        assert_eq!(keys(used().only(&CA_KEYS)), ["tls.crt", "tls.key"]);
    }

    #[test]
    fn a_secret_value_over_its_limit_is_kept_truncated_and_too_long() {
        for (key, max) in [
            ("value", Policy::Tenant.max_len()),
            ("tls.crt", MAX_CERTIFICATE_LEN),
            ("tls.key", MAX_KEY_LEN),
        ] {
            for (len, expected) in [(max, max), (max + 1, max + 1), (1 << 20, max + 1)] {
                let value = BASE64.encode(&vec![b'a'; len]);
                let kept = all(read(&json!({ key: value })).unwrap());
                assert_eq!(kept[key].0.len(), expected, "{key} with {len} bytes");
            }
        }
        let long = BASE64.encode(&vec![b'a'; 1 << 20]);
        let secret = read(&json!({ "tls.crt": long })).unwrap().only(&CA_KEYS);
        let refused = ClusterCa::from_secret(&secret).unwrap_err();
        let max = MAX_CERTIFICATE_LEN;
        let field = "tls.crt";
        assert_eq!(refused, CaRefused::TooLong { field, max });
    }

    #[test]
    fn the_error_for_an_invalid_secret_value_does_not_contain_it() {
        assert_eq!(
            read(&json!({"tls.key": "secret text"})).unwrap_err(),
            "tls.key is not base64"
        );
        let error = read(&json!({"tls.key": {"secret": "text"}})).unwrap_err();
        assert!(error.starts_with("invalid type: map"), "{error}");
        assert_eq!(
            format!("{:?}", read(&json!({"value": "YQ=="})).unwrap()),
            "SecretValues"
        );
    }
}
