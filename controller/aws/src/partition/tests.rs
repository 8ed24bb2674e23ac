use super::*;

#[test]
fn each_region_has_the_endpoint_of_its_partition() {
    for (region, name, host) in [
        ("us-east-1", "aws", "sts.us-east-1.amazonaws.com"),
        ("eu-west-1", "aws", "sts.eu-west-1.amazonaws.com"),
        ("ap-southeast-7", "aws", "sts.ap-southeast-7.amazonaws.com"),
        ("af-south-1", "aws", "sts.af-south-1.amazonaws.com"),
        ("il-central-1", "aws", "sts.il-central-1.amazonaws.com"),
        ("mx-central-1", "aws", "sts.mx-central-1.amazonaws.com"),
        ("cn-north-1", "aws-cn", "sts.cn-north-1.amazonaws.com.cn"),
        (
            "cn-northwest-1",
            "aws-cn",
            "sts.cn-northwest-1.amazonaws.com.cn",
        ),
        (
            "us-gov-west-1",
            "aws-us-gov",
            "sts.us-gov-west-1.amazonaws.com",
        ),
        (
            "us-gov-east-1",
            "aws-us-gov",
            "sts.us-gov-east-1.amazonaws.com",
        ),
        (
            "eusc-de-east-1",
            "aws-eusc",
            "sts.eusc-de-east-1.amazonaws.eu",
        ),
        ("us-iso-east-1", "aws-iso", "sts.us-iso-east-1.c2s.ic.gov"),
        (
            "us-isob-east-1",
            "aws-iso-b",
            "sts.us-isob-east-1.sc2s.sgov.gov",
        ),
        (
            "eu-isoe-west-1",
            "aws-iso-e",
            "sts.eu-isoe-west-1.cloud.adc-e.uk",
        ),
        (
            "us-isof-south-1",
            "aws-iso-f",
            "sts.us-isof-south-1.csp.hci.ic.gov",
        ),
    ] {
        let partition = of_region(region).unwrap();

        assert_eq!(partition.name, name, "{region}");
        assert_eq!(EndpointHost::sts(region).unwrap().as_str(), host);
        assert!(host.ends_with(partition.dns_suffix));
    }
}

#[test]
fn an_unknown_region_belongs_to_the_partition_of_its_area() {
    assert_eq!(of_region("eu-west-9").unwrap().name, "aws");
    assert_eq!(of_region("us-gov-central-1").unwrap().name, "aws-us-gov");
    assert_eq!(of_region("eusc-de-west-2").unwrap().name, "aws-eusc");
}

#[test]
fn a_malformed_region_has_no_partition() {
    for region in [
        "",
        "aws-global",
        "eu-west",
        "xx-west-1",
        "us-mars-west-1",
        "eusc-fr-east-1",
        "eu-west-1.evil.test",
        "eu-west-1/",
        "EU-WEST-1",
        "eu-west-1\r\n",
        "eu-we\u{301}st-1",
    ] {
        assert_eq!(of_region(region), None, "{region:?}");
        assert_eq!(EndpointHost::sts(region), None, "{region:?}");
    }
}

#[test]
fn an_endpoint_has_a_host_and_an_optional_port() {
    for host in [
        "sts-fips.us-east-1.amazonaws.com",
        "vpce-0123456789abcdef0-abcdefgh.sts.eu-west-1.vpce.amazonaws.com",
        "127.0.0.1:8443",
        "10.0.0.7",
        "[2001:db8::7]:8443",
        "[2001:db8::7]",
        "sts.internal:65535",
    ] {
        let parsed: EndpointHost = host.parse().unwrap();
        assert_eq!(parsed.as_str(), host);
    }
    for host in [
        "",
        "https://sts.eu-west-1.amazonaws.com",
        "http://sts.eu-west-1.amazonaws.com",
        "sts.eu-west-1.amazonaws.com/",
        "sts.eu-west-1.amazonaws.com/path",
        "sts.eu-west-1.amazonaws.com?x=y",
        "sts.eu-west-1.amazonaws.com#x",
        "user@sts.eu-west-1.amazonaws.com",
        "user:secret@sts.eu-west-1.amazonaws.com",
        "sts.eu-west-1.amazonaws.com:443",
        "sts.eu-west-1.amazonaws.com:",
        "sts.eu-west-1.amazonaws.com:0",
        "sts.eu-west-1.amazonaws.com:08443",
        "sts.eu-west-1.amazonaws.com:+8443",
        "sts.eu-west-1.amazonaws.com:65536",
        "sts.eu-west-1.amazonaws.com.",
        "Sts.eu-west-1.amazonaws.com",
        "sts..amazonaws.com",
        "-sts.amazonaws.com",
        "sts_.amazonaws.com",
        "sts.amazonaws.com\r\nx: y",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "2001:db8::7",
        "[2001:DB8::7]",
        "[2001:db8::7",
        "[fe80::1%eth0]",
        "[127.0.0.1]",
    ] {
        assert_eq!(host.parse::<EndpointHost>(), Err(InvalidHost), "{host}");
    }
    assert_eq!(
        format!("{}.test", "a".repeat(64)).parse::<EndpointHost>(),
        Err(InvalidHost)
    );
    assert_eq!(
        format!("{}test", "a.".repeat(125)).parse::<EndpointHost>(),
        Err(InvalidHost)
    );
}
