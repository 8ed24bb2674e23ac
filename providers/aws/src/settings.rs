//! The settings of the AWS provider.

use kubelet_attestation::names::NodeName;
use kubelet_authenticator::failure::Invalid;
use kubelet_authenticator::imds::METADATA_ENDPOINT;
use kubelet_authenticator::settings;
use kubelet_authenticator::settings::{Value, one_of};

settings! { pub(crate) TABLE [.., METADATA_ENDPOINT] {
    PRINCIPAL: AwsPrincipal = "aws.principal", "aws-principal", "PRINCIPAL",
        "Credentials that sign the STS call: instanceIdentityRole or instanceProfile",
        default "instanceIdentityRole";
    NODE_NAME: AwsNodeName = "aws.nodeName", "aws-node-name", "POLICY",
        "Source of the node name: hostname, localHostname or instanceID",
        default "hostname";
    STS_ENDPOINT: StsEndpoint = "aws.stsEndpoint", "aws-sts-endpoint", "HOST",
        "Host of STS (default: the endpoint of the region)", otherwise "the region's own";
} }

const HOST: &str = "a host, with or without a port, such as sts.example.com";

/// The AWS principal with whose credentials the instance signs STS calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AwsPrincipal {
    /// The instance identity role, which other principals cannot assume.
    #[default]
    InstanceIdentityRole,
    /// The role of the instance profile. Other principals can assume the role if its trust policy allows them.
    InstanceProfile,
}

/// The instance names that a node can use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AwsNodeName {
    /// The instance ID or the private DNS name.
    #[default]
    Hostname,
    /// The private DNS name in EC2, even if `local-hostname` in the metadata has a different domain.
    LocalHostname,
    /// The instance's ID.
    InstanceId,
}

const PRINCIPALS: [(&str, AwsPrincipal); 2] = [
    ("instanceIdentityRole", AwsPrincipal::InstanceIdentityRole),
    ("instanceProfile", AwsPrincipal::InstanceProfile),
];

const NAMES: [(&str, AwsNodeName); 3] = [
    ("hostname", AwsNodeName::Hostname),
    ("localHostname", AwsNodeName::LocalHostname),
    ("instanceID", AwsNodeName::InstanceId),
];

impl Value for AwsPrincipal {
    fn read(text: &str) -> Result<Self, Invalid> {
        one_of(text, &PRINCIPALS)
    }
}

impl Value for AwsNodeName {
    fn read(text: &str) -> Result<Self, Invalid> {
        one_of(text, &NAMES)
    }
}

/// An STS host, as in a `host` header: a private or FIPS endpoint. The node only signs a call to this host. The
/// controller makes the call, and needs the same setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StsEndpoint {
    /// The host, with its port if the port is not 443.
    pub(crate) host: String,
}

impl Value for StsEndpoint {
    /// Accepts `sts.example.com` and `sts.example.com:8443`, and both as URLs.
    fn read(text: &str) -> Result<Self, Invalid> {
        let authority = text.strip_prefix("https://").unwrap_or(text);
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let authority = authority.strip_suffix(":443").unwrap_or(authority);
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        if NodeName::parse(host).is_ok() && port.is_none_or(is_port) {
            let host = authority.to_owned();
            Ok(Self { host })
        } else {
            Err(Invalid::needed(HOST))
        }
    }
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::Provider;
    use kubelet_authenticator::settings::{Entry, ProviderSchema, Settings, Sources};

    use super::*;

    fn settings(given: &[(Entry, &str)]) -> Settings {
        let schema = ProviderSchema {
            provider: Provider::AWS,
            settings: TABLE,
            expiration_seconds: 3600,
        };
        let given = given.iter().map(|&(entry, text)| (entry, text.into()));
        let sources = Sources {
            flags: given.collect(),
            ..Sources::default()
        };
        Settings::load(sources, &schema).unwrap()
    }

    #[test]
    fn every_aws_setting_can_be_set() {
        let given = settings(&[
            (PRINCIPAL.entry(), "instanceProfile"),
            (NODE_NAME.entry(), "instanceID"),
            (STS_ENDPOINT.entry(), "sts.test"),
            (METADATA_ENDPOINT.entry(), "http://127.0.0.1:1"),
        ]);

        assert_eq!(given.value(&PRINCIPAL), Some(AwsPrincipal::InstanceProfile));
        assert_eq!(given.value(&NODE_NAME), Some(AwsNodeName::InstanceId));
        let sts = Some(StsEndpoint {
            host: "sts.test".to_owned(),
        });
        assert_eq!(given.value(&STS_ENDPOINT), sts);
        let metadata = given.value(&METADATA_ENDPOINT).unwrap();
        assert_eq!(metadata.to_string(), "http://127.0.0.1:1");
        assert_eq!(settings(&[]).value(&STS_ENDPOINT), None);
    }

    #[test]
    fn the_aws_table_defaults_match_the_effective_defaults() {
        let schema = settings(&[]);
        let default = |entry: Entry| entry.default_text().unwrap();
        assert_eq!(
            AwsPrincipal::read(default(PRINCIPAL.entry())),
            Ok(schema.value(&PRINCIPAL).unwrap_or_default())
        );
        assert_eq!(
            AwsNodeName::read(default(NODE_NAME.entry())),
            Ok(schema.value(&NODE_NAME).unwrap_or_default())
        );
    }

    #[test]
    fn an_unknown_choice_error_lists_the_valid_choices() {
        let error = AwsPrincipal::read("instanceRole").unwrap_err();
        assert_eq!(
            error.to_string(),
            "must be one of instanceIdentityRole, instanceProfile"
        );
        let error = AwsNodeName::read("Hostname").unwrap_err();
        assert_eq!(
            error.to_string(),
            "must be one of hostname, localHostname, instanceID"
        );
    }

    #[test]
    fn an_sts_endpoint_has_the_format_of_a_host_header() {
        for (text, host) in [
            (
                "sts-fips.us-east-1.amazonaws.com",
                "sts-fips.us-east-1.amazonaws.com",
            ),
            ("https://vpce-1.sts.vpce.test/", "vpce-1.sts.vpce.test"),
            ("https://sts.test:443", "sts.test"),
            ("sts.test:8443", "sts.test:8443"),
            ("127.0.0.1:4000", "127.0.0.1:4000"),
        ] {
            assert_eq!(StsEndpoint::read(text).unwrap().host, host, "{text}");
        }
        for text in [
            "http://sts.test",
            "https://sts.test/path",
            "sts.test:0",
            "sts.test:x",
            "sts.test:1:2",
            "STS.test",
            "a@sts.test",
            "sts.test\r\nx: y",
            "https://",
        ] {
            assert_eq!(
                StsEndpoint::read(text),
                Err(Invalid::needed(HOST)),
                "{text:?}"
            );
        }
    }
}
