//! RESP2 as a server has it: commands that come in pieces, and replies.

/// A command whose bytes have come, taken from the front. `Ok(None)`: a part of it is still to come. `Err`: it is none.
pub fn take(came: &mut Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, String> {
    let mut at = 0;
    let Some(count) = number(came, &mut at, b'*')? else { return Ok(None) };
    let mut arguments = Vec::new();
    for _ in 0..count {
        let Some(len) = number(came, &mut at, b'$')? else { return Ok(None) };
        let Some(argument) = came.get(at..at + len) else { return Ok(None) };
        if came.len() < at + len + 2 {
            return Ok(None);
        }
        arguments.push(argument.to_vec());
        at += len + 2;
    }
    came.drain(..at);
    Ok(Some(arguments))
}

/// The number in a line of this kind, if all of the line has come.
fn number(came: &[u8], at: &mut usize, kind: u8) -> Result<Option<usize>, String> {
    let rest = came.get(*at..).unwrap_or_default();
    let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let digits = rest[..end].strip_prefix(&[kind]).and_then(|digits| std::str::from_utf8(digits).ok());
    let number = digits.and_then(|digits| digits.parse().ok());
    *at += end + 2;
    number.map(Some).ok_or_else(|| format!("a line of kind {:?} was expected", char::from(kind)))
}

pub fn ok() -> Vec<u8> {
    b"+OK\r\n".to_vec()
}

pub fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

pub fn integer(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

pub fn nothing() -> Vec<u8> {
    b"$-1\r\n".to_vec()
}

pub fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

pub fn array(replies: &[Vec<u8>]) -> Vec<u8> {
    [format!("*{}\r\n", replies.len()).as_bytes(), &replies.concat()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_as_they_come() {
        let whole = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n$4\r\nTIME\r\n";
        let (mut came, mut taken) = (Vec::new(), Vec::new());
        for byte in whole {
            came.push(*byte);
            taken.extend(take(&mut came).unwrap());
        }
        assert_eq!(taken, [vec![b"GET".to_vec(), b"a\r\nb".to_vec()], vec![b"TIME".to_vec()]]);
        assert!(came.is_empty());
        for wrong in [&b"GET a\r\n"[..], b"*x\r\n", b"*1\r\n:1\r\n"] {
            assert!(take(&mut wrong.to_vec()).is_err(), "{wrong:?}");
        }
    }
}
