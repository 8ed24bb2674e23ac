//! The networks of instances, with the properties that affect names.

/// The network of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// A subnet in which names are derived from addresses and contain the region's own domain.
    AddressNames,
    /// The same subnet, in a VPC whose DHCP options contain this domain. Several domains are separated by spaces. A
    /// domain can be empty, or end with a dot. The metadata service uses this domain in names, but EC2 does not.
    Domain(&'static str),
    /// A subnet in which names are derived from instance IDs.
    ResourceNames,
    /// A subnet without IPv4, which always has resource names.
    Ipv6Only,
}

impl Network {
    /// One network of each kind, with one network for each form of a domain.
    pub const ALL: [Self; 7] = [
        Self::AddressNames,
        Self::Domain("corp.test"),
        Self::Domain("corp.test."),
        Self::Domain("corp.test other.test"),
        Self::Domain(""),
        Self::ResourceNames,
        Self::Ipv6Only,
    ];

    /// The private DNS name that EC2 reports.
    pub fn private_dns_name(self, region: &str, instance: &str, ipv4: &str) -> String {
        let domain = if region == "us-east-1" {
            "ec2.internal".to_owned()
        } else {
            format!("{region}.compute.internal")
        };
        format!("{}.{domain}", self.label(instance, ipv4))
    }

    /// `meta-data/local-hostname`.
    pub(super) fn local_hostname(self, region: &str, instance: &str, ipv4: &str) -> String {
        match self {
            Self::Domain("") => self.label(instance, ipv4),
            Self::Domain(domain) => format!("{}.{domain}", self.label(instance, ipv4)),
            Self::AddressNames | Self::ResourceNames | Self::Ipv6Only => {
                self.private_dns_name(region, instance, ipv4)
            }
        }
    }

    fn label(self, instance: &str, ipv4: &str) -> String {
        match self {
            Self::AddressNames | Self::Domain(_) => format!("ip-{}", ipv4.replace('.', "-")),
            Self::ResourceNames | Self::Ipv6Only => instance.to_owned(),
        }
    }
}
