//! Parser of label selectors, with Kubernetes' error texts.

use super::{Operator, Requirement};
use crate::names::qualified_name;
use crate::selector::ParseError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Less,
    NotEquals,
    In,
    NotIn,
    Open,
    Identifier(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::End => "",
            Token::Close => ")",
            Token::Comma => ",",
            Token::Not => "!",
            Token::DoubleEquals => "==",
            Token::Equals => "=",
            Token::Greater => ">",
            Token::Less => "<",
            Token::NotEquals => "!=",
            Token::In => "in",
            Token::NotIn => "notin",
            Token::Open => "(",
            Token::Identifier(text) => text,
        }
    }
}

pub(super) struct Parser<'a> {
    text: &'a str,
    position: usize,
}

fn error<T>(text: String) -> Result<T, ParseError> {
    Err(ParseError(text))
}

impl<'a> Parser<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, position: 0 }
    }

    /// The next token and its end. Keywords are operators.
    fn scan(&self) -> (Token<'a>, usize) {
        let bytes = self.text.as_bytes();
        let mut at = self.position;
        while bytes.get(at).is_some_and(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')) {
            at += 1;
        }
        let second = bytes.get(at + 1).copied();
        let symbol = match bytes.get(at) {
            None | Some(0) => return (Token::End, at),
            Some(b')') => Some(Token::Close),
            Some(b',') => Some(Token::Comma),
            Some(b'(') => Some(Token::Open),
            Some(b'>') => Some(Token::Greater),
            Some(b'<') => Some(Token::Less),
            Some(b'!') if second == Some(b'=') => Some(Token::NotEquals),
            Some(b'!') => Some(Token::Not),
            Some(b'=') if second == Some(b'=') => Some(Token::DoubleEquals),
            Some(b'=') => Some(Token::Equals),
            Some(_) => None,
        };
        if let Some(symbol) = symbol {
            return (symbol, at + symbol.text().len());
        }
        let length = bytes[at..]
            .iter()
            .position(|b| {
                matches!(b, 0 | b' ' | b'\t' | b'\r' | b'\n' | b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
            })
            .unwrap_or(bytes.len() - at);
        // Stops at ASCII only, so the slice is on character boundaries.
        let token_text = &self.text[at..at + length];
        let token = match token_text {
            "in" => Token::In,
            "notin" => Token::NotIn,
            _ => Token::Identifier(token_text),
        };
        (token, at + length)
    }

    /// The next token, with keywords as plain identifiers.
    fn peek(&self) -> Token<'a> {
        match self.scan().0 {
            token_text @ (Token::In | Token::NotIn) => Token::Identifier(token_text.text()),
            token => token,
        }
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.position = self.scan().1;
        token
    }

    pub fn parse(mut self) -> Result<Vec<Requirement>, ParseError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::Identifier(_) | Token::Not => {
                    let requirement = self
                        .requirement()
                        .map_err(|e| ParseError(format!("unable to parse requirement: {e}")))?;
                    requirements.push(requirement);
                    match self.next() {
                        Token::End => return Ok(requirements),
                        Token::Comma => match self.peek() {
                            Token::Identifier(_) | Token::Not => {}
                            other => {
                                return error(format!(
                                    "found '{}', expected: identifier after ','",
                                    other.text()
                                ));
                            }
                        },
                        other => {
                            return error(format!(
                                "found '{}', expected: ',' or 'end of string'",
                                other.text()
                            ));
                        }
                    }
                }
                Token::End => return Ok(requirements),
                other => {
                    return error(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.text()
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let mut token = self.next();
        let negated = token == Token::Not;
        if negated {
            token = self.next();
        }
        let Token::Identifier(key) = token else {
            return error(format!("found '{}', expected: identifier", token.text()));
        };
        let problems = qualified_name(key);
        if !problems.is_empty() {
            let shown = crate::field::show_str(key);
            return error(format!("<nil>: Invalid value: {shown}: {}", problems.join("; ")));
        }
        let ends = matches!(self.peek(), Token::End | Token::Comma);
        if negated {
            return Requirement::new(key.to_owned(), Operator::DoesNotExist, Vec::new());
        }
        if ends {
            return Requirement::new(key.to_owned(), Operator::Exists, Vec::new());
        }
        let (token, end) = self.scan();
        self.position = end;
        let operator = match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            other => {
                return error(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.text()));
            }
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(key.to_owned(), operator, values)
    }

    fn exact_value(&mut self) -> Result<String, ParseError> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Identifier(value) => Ok(value.to_owned()),
            other => error(format!("found '{}', expected: identifier", other.text())),
        }
    }

    /// `(a,b)`; nothing between commas is the empty value.
    fn values(&mut self) -> Result<Vec<String>, ParseError> {
        let open = self.next();
        if open != Token::Open {
            return error(format!("found '{}' expected: '('", open.text()));
        }
        match self.peek() {
            Token::Close => {
                self.next();
                return Ok(vec![String::new()]);
            }
            Token::Identifier(_) | Token::Comma => {}
            other => {
                return error(format!("found '{}', expected: ',', ')' or identifier", other.text()));
            }
        }
        let mut values = Vec::new();
        loop {
            match self.next() {
                Token::Identifier(value) => {
                    values.push(value.to_owned());
                    match self.peek() {
                        Token::Comma => {}
                        Token::Close => break,
                        other => {
                            return error(format!("found '{}', expected: ',' or ')'", other.text()));
                        }
                    }
                }
                Token::Comma => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    match self.peek() {
                        Token::Close => {
                            values.push(String::new());
                            break;
                        }
                        Token::Comma => values.push(String::new()),
                        _ => {}
                    }
                }
                other => {
                    return error(format!("found '{}', expected: ',', or identifier", other.text()));
                }
            }
        }
        self.next();
        Ok(values)
    }
}
