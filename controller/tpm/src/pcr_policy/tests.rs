mod recorded;

use node_attestation_core::crd::PcrSet;

use super::*;

fn value(byte: u8) -> String {
    HEXLOWER.encode(&[byte; 32])
}

fn state(registers: &[(u8, u8)]) -> PcrSet {
    let registers = registers.iter();
    registers
        .map(|(number, byte)| (number.to_string(), value(*byte)))
        .collect()
}

fn settings(allowed: Vec<PcrSet>) -> crd::PcrPolicy {
    crd::PcrPolicy {
        allowed,
        ..crd::PcrPolicy::default()
    }
}

fn enforced(allowed: &[&[(u8, u8)]]) -> PcrPolicy {
    let allowed = allowed.iter().map(|registers| state(registers));
    PcrPolicy::new(&settings(allowed.collect())).unwrap()
}

fn registers(registers: &[(u8, u8)]) -> Registers {
    let registers = registers.iter();
    Registers::new(
        registers
            .map(|(number, byte)| (*number, [*byte; 32]))
            .collect(),
    )
    .unwrap()
}

fn invalid_state(rule: &str) -> InvalidTpmSettings {
    InvalidTpmSettings::new(format!("pcrPolicy.allowed[1] {rule}"))
}

#[test]
fn one_matching_state_suffices_and_extra_registers_are_ignored() {
    let policy = enforced(&[&[(4, 1), (7, 1)], &[(4, 2), (7, 2)]]);

    for good in [
        &[(4, 1), (7, 1)][..],
        &[(4, 2), (7, 2)],
        &[(0, 9), (4, 1), (7, 1), (23, 9)],
    ] {
        assert_eq!(policy.allows(&registers(good)), Ok(()), "{good:?}");
    }
}

#[test]
fn the_refusal_names_the_registers_that_differ_from_the_nearest_state() {
    let policy = enforced(&[&[(0, 1), (4, 1), (7, 1)], &[(0, 2), (4, 2), (7, 2)]]);
    for (quoted, register, others) in [
        ([(0, 1), (4, 1), (7, 3)], 7, &[7][..]),
        ([(0, 2), (4, 3), (7, 2)], 4, &[4]),
        // Values that come from two different states do not match the policy.
        ([(0, 1), (4, 1), (7, 2)], 7, &[7]),
        ([(0, 3), (4, 1), (7, 3)], 0, &[0, 7]),
        ([(0, 3), (4, 3), (7, 3)], 0, &[0, 4, 7]),
    ] {
        let denial = policy.allows(&registers(&quoted)).unwrap_err();

        let byte = quoted.iter().find(|(number, _)| *number == register);
        assert_eq!(
            denial,
            TpmDenial::RegisterNotAllowed {
                register,
                value: value(byte.unwrap().1),
                others: others.to_vec(),
            }
        );
    }
    let denial = policy.allows(&registers(&[(0, 3), (4, 1), (7, 3)]));
    let said = denial.unwrap_err().to_string();
    assert!(
        said.starts_with("registers 0, 7 are not in an allowed state; register 0 is 0303"),
        "{said}"
    );
}

#[test]
fn a_register_of_the_policy_must_be_quoted() {
    let policy = enforced(&[&[(4, 1), (7, 1)]]);

    let denial = policy.allows(&registers(&[(4, 1)]));

    assert_eq!(denial, Err(TpmDenial::RegisterNotQuoted(7)));
}

#[test]
fn a_policy_without_states_allows_every_state() {
    assert_eq!(enforced(&[]).allows(&registers(&[(0, 9)])), Ok(()));
}

#[test]
fn a_digest_from_another_bank_is_refused() {
    let mut state = state(&[(4, 1), (7, 1)]);
    state.insert("7".to_owned(), "0f".repeat(48));

    assert_eq!(
        PcrPolicy::new(&settings(vec![self::state(&[(4, 1)]), state])),
        Err(invalid_state(
            "has a digest of 96 digits (SHA-384): only SHA-256 is supported, with 64 digits"
        ))
    );
}

#[test]
fn a_pcr_policy_with_an_invalid_or_empty_state_is_refused() {
    let good = state(&[(4, 1)]);
    let of = |number: &str, value: String| PcrSet::from([(number.to_owned(), value)]);
    for bad in [
        PcrSet::new(),
        of("24", value(1)),
        of("-1", value(1)),
        of("four", value(1)),
        of("4", value(1).split_off(2)),
        of("4", value(0xab).to_uppercase()),
        // The selection contains the same register twice.
        [of("4", value(1)), of("04", value(2))]
            .into_iter()
            .flatten()
            .collect(),
    ] {
        assert_eq!(
            PcrPolicy::new(&settings(vec![good.clone(), bad.clone()])),
            Err(invalid_state(NOT_REGISTERS)),
            "{bad:?}"
        );
    }
}

#[test]
fn a_state_with_only_software_resettable_registers_is_refused() {
    let policy = |states: &[&[(u8, u8)]]| {
        let states = states.iter().map(|registers| state(registers));
        PcrPolicy::new(&settings(states.collect()))
    };
    for alone in [&[(16, 1)][..], &[(23, 1)], &[(16, 1), (23, 1)]] {
        assert_eq!(
            policy(&[&[(7, 1)], alone]),
            Err(invalid_state(ONLY_OF_SOFTWARE)),
            "{alone:?}"
        );
    }
    for with_another in [&[(7, 1), (16, 1)][..], &[(15, 1)], &[(17, 1)], &[(22, 1)]] {
        assert!(policy(&[with_another]).is_ok(), "{with_another:?}");
    }
}

/// A policy of states that contain alternatives.
fn with_alternatives(states: &[&[(&str, &[u8])]]) -> Result<PcrPolicy, InvalidTpmSettings> {
    let states = states.iter().map(|registers| {
        let registers = registers.iter().map(|(register, values)| {
            let values: Vec<_> = values.iter().map(|byte| value(*byte)).collect();
            ((*register).to_owned(), values.join(","))
        });
        registers.collect()
    });
    PcrPolicy::new(&settings(states.collect()))
}

fn not_allowed(register: u8, byte: u8, others: &[u8]) -> Result<(), TpmDenial> {
    Err(TpmDenial::RegisterNotAllowed {
        register,
        value: value(byte),
        others: others.to_vec(),
    })
}

#[test]
fn each_register_must_match_one_of_its_alternatives() {
    let policy = with_alternatives(&[&[("4", &[1, 2]), ("7", &[5, 6])]]).unwrap();
    for (quoted, expected) in [
        ([(4, 1), (7, 5)], Ok(())),
        ([(4, 1), (7, 6)], Ok(())),
        ([(4, 2), (7, 5)], Ok(())),
        ([(4, 5), (7, 5)], not_allowed(4, 5, &[4])),
        ([(4, 1), (7, 1)], not_allowed(7, 1, &[7])),
        ([(4, 3), (7, 3)], not_allowed(4, 3, &[4, 7])),
        ([(4, 1), (5, 5)], Err(TpmDenial::RegisterNotQuoted(7))),
    ] {
        assert_eq!(policy.allows(&registers(&quoted)), expected, "{quoted:?}");
    }
}

#[test]
fn alternatives_of_different_allowed_states_are_not_combined() {
    let policy = with_alternatives(&[
        &[("0", &[1]), ("4", &[1]), ("7", &[5, 6])],
        &[("0", &[2]), ("4", &[2, 3]), ("7", &[5, 6])],
    ]);
    let policy = policy.unwrap();
    for (quoted, expected) in [
        ([(0, 1), (4, 1), (7, 5)], Ok(())),
        ([(0, 2), (4, 2), (7, 6)], Ok(())),
        ([(0, 2), (4, 3), (7, 6)], Ok(())),
        ([(0, 1), (4, 1), (7, 7)], not_allowed(7, 7, &[7])),
        // The value is an alternative only in the other of the two states.
        ([(0, 1), (4, 3), (7, 5)], not_allowed(4, 3, &[4])),
        ([(0, 3), (4, 1), (7, 7)], not_allowed(0, 3, &[0, 7])),
    ] {
        assert_eq!(policy.allows(&registers(&quoted)), expected, "{quoted:?}");
    }
}

#[test]
fn alternatives_are_digests_separated_by_commas() {
    let of = |text: String| PcrPolicy::new(&settings(vec![PcrSet::from([("7".to_owned(), text)])]));
    let [one, two] = [value(1), value(2)];
    for good in [one.clone(), format!("{one},{two}"), format!("{one}, {two}")] {
        assert!(of(good.clone()).is_ok(), "{good}");
    }
    for bad in [
        String::new(),
        format!("{one},"),
        format!(",{one}"),
        format!("{one} {two}"),
        format!("{one},  {two}"),
        format!("{one};{two}"),
        format!("{one}{two}"),
    ] {
        let rule = "pcrPolicy.allowed[0] must be registers from 0 to 23 with their digests";
        let expected = InvalidTpmSettings::new(rule.to_owned());
        assert_eq!(of(bad.clone()), Err(expected), "{bad}");
    }
}

/// Returns the value of the register after systemd extends the register with its separator, or the unchanged value if
/// systemd does not extend the register.
fn array(number: u8, value: [u8; 32]) -> [u8; 32] {
    separated(number, &value).map_or(value, |separated| separated.try_into().unwrap())
}

#[test]
fn a_value_without_a_firmware_measurement_is_refused() {
    let zero = [0; 32];
    let separator = |number: u8| array(number, zero);
    let policy = |number: u8, value: [u8; 32]| {
        let state = PcrSet::from([
            ("15".to_owned(), self::value(1)),
            (number.to_string(), HEXLOWER.encode(&value)),
        ]);
        PcrPolicy::new(&settings(vec![self::state(&[(7, 1)]), state]))
    };
    for number in 0..=7 {
        for value in [zero, separator(number)] {
            let rule = format!(
                "contains the value that register {number} has before the firmware measures anything: any operating \
                 system can extend a register with this value"
            );
            assert_eq!(policy(number, value), Err(invalid_state(&rule)));
        }
        let number = number.to_string();
        let error = with_alternatives(&[&[("15", &[1])], &[(&number, &[1, 0])]]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("pcrPolicy.allowed[1] contains the value"),
            "{error}"
        );
    }
    for number in 8..=14 {
        assert!(policy(number, zero).is_ok(), "{number}");
    }
}

#[test]
fn a_quote_of_unmeasured_registers_is_denied_with_every_policy() {
    let zero_in_12 = enforced(&[&[(7, 1), (12, 0)]]);
    assert_eq!(zero_in_12.allows(&registers(&[(7, 1), (12, 0)])), Ok(()));
    for policy in [
        enforced(&[&[(7, 1)]]),
        with_alternatives(&[&[("7", &[1, 2])]]).unwrap(),
    ] {
        for number in [0, 1, 2, 3, 4, 5, 6] {
            // A register that is not in the policy is also denied.
            assert_eq!(
                policy.allows(&registers(&[(7, 1), (number, 0)])),
                Err(TpmDenial::RegisterNotMeasured(number))
            );
            let mut with_separator = BTreeMap::from([(7, [1; 32])]);
            with_separator.insert(number, array(number, [0; 32]));
            assert_eq!(
                policy.allows(&Registers::new(with_separator).unwrap()),
                Err(TpmDenial::RegisterNotMeasured(number))
            );
        }
        assert_eq!(
            policy.allows(&registers(&[(7, 1), (8, 0), (15, 0)])),
            Ok(())
        );
    }
    // Without a policy, an unmeasured register is only a finding.
    assert_eq!(enforced(&[]).allows(&registers(&[(0, 0)])), Ok(()));
}

#[test]
fn the_systemd_separator_is_required_permitted_or_refused() {
    let names = [(7, 1), (8, 1), (9, 0), (11, 1), (12, 0)];
    let plain: BTreeMap<u8, [u8; 32]> = names.map(|(number, byte)| (number, [byte; 32])).into();
    let with = plain
        .iter()
        .map(|(number, value)| (*number, array(*number, *value)));
    let with: BTreeMap<_, _> = with.collect();
    let mut half = with.clone();
    half.insert(9, [0; 32]);
    let twice = with
        .iter()
        .map(|(number, value)| (*number, array(*number, *value)));
    let twice: BTreeMap<_, _> = twice.collect();
    let another = BTreeMap::from([(7, [9; 32])]);
    let another: BTreeMap<_, _> = plain.clone().into_iter().chain(another).collect();
    let missing = |registers: &[u8]| {
        Err(TpmDenial::OsSeparatorMissing {
            registers: registers.to_vec(),
        })
    };
    let refused = |registers: &[u8]| {
        Err(TpmDenial::OsSeparatorRefused {
            registers: registers.to_vec(),
        })
    };
    let denied = |registers: &BTreeMap<u8, [u8; 32]>| {
        let others: Vec<u8> = if *registers == another {
            vec![7]
        } else {
            vec![7, 9, 12]
        };
        Err(TpmDenial::RegisterNotAllowed {
            register: 7,
            value: HEXLOWER.encode(&registers[&7]),
            others,
        })
    };
    for (os_separator, [of_plain, of_with, of_half]) in [
        (OsSeparator::Permitted, [Ok(()), Ok(()), Ok(())]),
        (
            OsSeparator::Required,
            [missing(&[7, 9, 12]), Ok(()), missing(&[9])],
        ),
        (
            OsSeparator::Refused,
            [Ok(()), refused(&[7, 9, 12]), refused(&[7, 12])],
        ),
    ] {
        let in_states = crd::PcrPolicy {
            allowed: vec![state(&names)],
            os_separator,
        };
        let in_alternatives = crd::PcrPolicy {
            allowed: vec![
                state(&names)
                    .into_iter()
                    .map(|(number, value)| (number, format!("{},{value}", self::value(7))))
                    .collect(),
            ],
            os_separator,
        };
        for settings in [in_states, in_alternatives] {
            let policy = PcrPolicy::new(&settings).unwrap();
            let decided = |quoted: &BTreeMap<u8, [u8; 32]>| {
                policy.allows(&Registers::new(quoted.clone()).unwrap())
            };
            assert_eq!(decided(&plain), of_plain, "{os_separator:?}");
            assert_eq!(decided(&with), of_with, "{os_separator:?}");
            assert_eq!(decided(&half), of_half, "{os_separator:?}");
            assert_eq!(decided(&twice), denied(&twice), "{os_separator:?}");
            let TpmDenial::RegisterNotAllowed { register: 7, .. } = decided(&another).unwrap_err()
            else {
                panic!("another reason");
            };
        }
    }
}

#[test]
fn a_denial_for_the_separator_names_it_and_the_setting() {
    let said = |os_separator, quoted: [(u8, [u8; 32]); 2]| {
        let allowed = vec![state(&[(0, 1), (7, 1)])];
        let settings = crd::PcrPolicy {
            allowed,
            os_separator,
        };
        let policy = PcrPolicy::new(&settings).unwrap();
        let quoted = Registers::new(quoted.into()).unwrap();
        policy.allows(&quoted).unwrap_err().to_string()
    };
    let with = |number: u8| (number, array(number, [1; 32]));
    assert_eq!(
        said(OsSeparator::Refused, [with(0), with(7)]),
        "registers 0, 7 have systemd's separator after their allowed values, but osSeparator is Refused"
    );
    assert_eq!(
        said(OsSeparator::Required, [(0, [1; 32]), with(7)]),
        "registers 0 have their allowed values without systemd's separator, but osSeparator is Required"
    );
}

#[test]
fn an_unquoted_register_is_reported_before_a_different_value() {
    // An earlier plugin quotes registers 0 to 7. The policy contains the registers into which a loader and a stub
    // measure.
    let policy = enforced(&[
        &[(0, 1), (7, 1), (8, 1), (9, 1)],
        &[(0, 1), (7, 1), (11, 1)],
    ]);

    for quoted in [&[(0, 1), (7, 1)][..], &[(0, 9), (7, 1)]] {
        let denial = policy.allows(&registers(quoted));
        assert_eq!(denial, Err(TpmDenial::RegisterNotQuoted(11)), "{quoted:?}");
    }
    // For a policy without these registers, additional quoted registers have no effect.
    let policy = enforced(&[&[(0, 1), (7, 1)]]);
    let new = [
        (0, 1),
        (7, 1),
        (8, 3),
        (9, 4),
        (11, 5),
        (12, 0),
        (13, 0),
        (14, 6),
    ];
    assert_eq!(policy.allows(&registers(&new)), Ok(()));
}

#[test]
fn a_state_that_lacks_only_the_separator_is_the_nearest() {
    let plain = registers(&[(7, 1), (9, 1)]);
    let with = [(7, array(7, [1; 32])), (9, array(9, [1; 32]))];
    let with = Registers::new(with.into()).unwrap();
    // The order of the states has no effect.
    for order in [[1, 2], [2, 1]] {
        let policy = |os_separator| {
            let allowed = order.map(|byte| state(&[(7, byte), (9, byte)])).to_vec();
            PcrPolicy::new(&crd::PcrPolicy {
                allowed,
                os_separator,
            })
            .unwrap()
        };

        assert_eq!(
            policy(OsSeparator::Required).allows(&plain),
            Err(TpmDenial::OsSeparatorMissing {
                registers: vec![7, 9]
            })
        );
        assert_eq!(
            policy(OsSeparator::Refused).allows(&with),
            Err(TpmDenial::OsSeparatorRefused {
                registers: vec![7, 9]
            })
        );
    }
}
