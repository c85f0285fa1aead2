//! Parses expressions by Jinja2's grammar, one function per precedence level.

use super::JinjaResult;
use super::ast::{Args, CompareOp, Expr, Filter, MathOp, Postfix};
use super::lexer::Token;
use super::parser::Parser;

impl Parser {
    pub(super) fn expression(&mut self) -> JinjaResult<Expr> {
        self.deeper(Parser::conditional)
    }

    /// An expression, or a tuple of expressions separated by commas.
    pub(super) fn tuple(&mut self, conditional: bool) -> JinjaResult<Expr> {
        let one = |parser: &mut Parser| match conditional {
            true => parser.expression(),
            false => parser.deeper(Parser::or),
        };
        let first = one(self)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_op(",") {
            if matches!(self.peek(), Token::BlockEnd | Token::PrintEnd | Token::Op(")")) {
                break;
            }
            items.push(one(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    fn conditional(&mut self) -> JinjaResult<Expr> {
        let value = self.or()?;
        if !self.skip_name("if") {
            return Ok(value);
        }
        let test = self.or()?;
        let otherwise = if self.skip_name("else") { Some(self.expression()?) } else { None };
        Ok(Expr::Conditional(Box::new((value, test, otherwise))))
    }

    fn or(&mut self) -> JinjaResult<Expr> {
        let first = self.and()?;
        if !self.is_name("or") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_name("or") {
            parts.push(self.and()?);
        }
        Ok(Expr::Or(parts))
    }

    fn and(&mut self) -> JinjaResult<Expr> {
        let first = self.not()?;
        if !self.is_name("and") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_name("and") {
            parts.push(self.not()?);
        }
        Ok(Expr::And(parts))
    }

    fn not(&mut self) -> JinjaResult<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.deeper(Parser::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> JinjaResult<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let op = match self.peek() {
                Token::Op("==") => CompareOp::Eq,
                Token::Op("!=") => CompareOp::Ne,
                Token::Op("<") => CompareOp::Lt,
                Token::Op("<=") => CompareOp::Le,
                Token::Op(">") => CompareOp::Gt,
                Token::Op(">=") => CompareOp::Ge,
                Token::Name(name) if name == "in" => CompareOp::In,
                Token::Name(name) if name == "not" => match self.peek_at(1) {
                    Token::Name(next) if next == "in" => {
                        self.next();
                        CompareOp::NotIn
                    }
                    _ => break,
                },
                _ => break,
            };
            self.next();
            rest.push((op, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn math(
        &mut self,
        ops: &[(&str, MathOp)],
        operand: fn(&mut Parser) -> JinjaResult<Expr>,
    ) -> JinjaResult<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(&(_, op)) = ops.iter().find(|(text, _)| self.is_op(text)) {
            self.next();
            rest.push((op, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Math(Box::new(first), rest) })
    }

    fn sum(&mut self) -> JinjaResult<Expr> {
        self.math(&[("+", MathOp::Add), ("-", MathOp::Sub)], Parser::concat)
    }

    fn concat(&mut self) -> JinjaResult<Expr> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_op("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> JinjaResult<Expr> {
        let ops = [("*", MathOp::Mul), ("//", MathOp::FloorDiv), ("/", MathOp::Div), ("%", MathOp::Mod)];
        self.math(&ops, Parser::power)
    }

    fn power(&mut self) -> JinjaResult<Expr> {
        self.math(&[("**", MathOp::Pow)], |parser| parser.unary(true))
    }

    fn unary(&mut self, filters: bool) -> JinjaResult<Expr> {
        let node = if self.skip_op("-") {
            Expr::Negate(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else if self.skip_op("+") {
            Expr::Positive(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        self.postfix(node, filters)
    }

    fn primary(&mut self) -> JinjaResult<Expr> {
        Ok(match self.peek() {
            Token::Name(_) => {
                let name = self.expect_name()?;
                match name.as_str() {
                    "true" | "True" => Expr::Bool(true),
                    "false" | "False" => Expr::Bool(false),
                    "none" | "None" => Expr::None,
                    _ => Expr::Name(self.symbol(&name)),
                }
            }
            Token::Str(_) => {
                let mut text = String::new();
                while let Token::Str(part) = self.peek() {
                    text.push_str(part);
                    self.next();
                }
                Expr::Str(text.into())
            }
            &Token::Int(i) => {
                self.next();
                Expr::Int(i)
            }
            &Token::Float(f) => {
                self.next();
                Expr::Float(f)
            }
            Token::Op("(") => {
                self.next();
                if self.skip_op(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.tuple(true)?;
                self.expect_op(")")?;
                inner
            }
            Token::Op("[") => {
                self.next();
                Expr::List(self.list("]", |parser| parser.expression())?)
            }
            Token::Op("{") => {
                self.next();
                let entries = self.list("}", |parser| {
                    let key = parser.expression()?;
                    parser.expect_op(":")?;
                    Ok((key, parser.expression()?))
                })?;
                Expr::Dict(entries)
            }
            _ => return self.unexpected("an expression"),
        })
    }

    fn list<T>(
        &mut self,
        close: &str,
        mut one: impl FnMut(&mut Parser) -> JinjaResult<T>,
    ) -> JinjaResult<Vec<T>> {
        let mut items = Vec::new();
        while !self.skip_op(close) {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(close) {
                    break;
                }
            }
            items.push(one(self)?);
        }
        Ok(items)
    }

    fn postfix(&mut self, node: Expr, filters: bool) -> JinjaResult<Expr> {
        let mut chain = Vec::new();
        // `is` and `|` end the postfix operators of the primary itself; only calls may follow them.
        let mut filtered = false;
        loop {
            if self.is_op("(") {
                chain.push(Postfix::Call(self.args()?));
            } else if !filtered && self.skip_op(".") {
                chain.push(self.attribute()?);
            } else if !filtered && self.skip_op("[") {
                chain.push(self.subscript()?);
            } else if filters && self.skip_op("|") {
                filtered = true;
                chain.push(Postfix::Filter(self.filter()?));
            } else if filters && self.skip_name("is") {
                filtered = true;
                chain.push(self.test()?);
            } else {
                break;
            }
        }
        if chain.is_empty() {
            return Ok(node);
        }
        Ok(match node {
            Expr::Postfix(base, mut before) => {
                before.append(&mut chain);
                Expr::Postfix(base, before)
            }
            node => Expr::Postfix(Box::new(node), chain),
        })
    }

    fn attribute(&mut self) -> JinjaResult<Postfix> {
        match self.next() {
            Token::Name(name) => Ok(Postfix::Attribute(self.symbol(&name))),
            Token::Int(i) => Ok(Postfix::Item(Expr::Int(i))),
            _ => self.unexpected("a name or number"),
        }
    }

    fn subscript(&mut self) -> JinjaResult<Postfix> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut colons = 0;
        loop {
            if self.skip_op("]") {
                break;
            }
            if self.skip_op(":") {
                colons += 1;
                if colons > 2 {
                    return self.unexpected("']'");
                }
                continue;
            }
            if parts[colons].is_some() {
                return self.unexpected("']'");
            }
            parts[colons] = Some(if colons == 0 { self.tuple(true)? } else { self.expression()? });
        }
        if colons > 0 {
            return Ok(Postfix::Slice(Box::new(parts)));
        }
        match parts {
            [Some(index), ..] => Ok(Postfix::Item(index)),
            _ => self.error("expected a subscript"),
        }
    }

    /// A dotted name such as `a.b`.
    fn dotted(&mut self) -> JinjaResult<String> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(name)
    }

    pub(super) fn filter(&mut self) -> JinjaResult<Filter> {
        let name = self.dotted()?;
        let args = if self.is_op("(") { self.args()? } else { Args::default() };
        Ok(Filter { name, args })
    }

    fn test(&mut self) -> JinjaResult<Postfix> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        let args = match self.peek() {
            Token::Op("(") => self.args()?,
            Token::Op("[" | "{") | Token::Str(_) | Token::Int(_) | Token::Float(_) => self.bare_argument()?,
            Token::Name(next)
                if !matches!(next.as_str(), "else" | "or" | "and" | "if" | "is" | "in" | "not") =>
            {
                self.bare_argument()?
            }
            _ => Args::default(),
        };
        Ok(Postfix::Test { name, args, negated })
    }

    /// An argument without parentheses, as in `x is divisibleby 3`.
    fn bare_argument(&mut self) -> JinjaResult<Args> {
        let primary = self.primary()?;
        let argument = self.postfix(primary, false)?;
        Ok(Args { positional: vec![argument], ..Args::default() })
    }

    fn args(&mut self) -> JinjaResult<Args> {
        let mut args = Args::default();
        self.expect_op("(")?;
        let mut first = true;
        while !self.skip_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            first = false;
            if self.skip_op("**") {
                args.star_star = Some(Box::new(self.expression()?));
            } else if self.skip_op("*") {
                args.star = Some(Box::new(self.expression()?));
            } else if matches!((self.peek(), self.peek_at(1)), (Token::Name(_), Token::Op("="))) {
                let name = self.expect_name()?;
                let name = self.symbol(&name);
                self.next();
                args.named.push((name, self.expression()?));
            } else {
                if !args.named.is_empty() {
                    return self.error("positional argument after a keyword argument");
                }
                args.positional.push(self.expression()?);
            }
        }
        Ok(args)
    }
}
