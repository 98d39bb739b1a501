"""The tables of English: units, currencies and abbreviations, as `language` reads them."""

UNITS = """
    km: kilometer, kilometers
    m: meter, meters
    cm: centimeter, centimeters
    mm: millimeter, millimeters
    nm: nanometer, nanometers
    mi: mile, miles
    ft: foot, feet
    yd: yard, yards
    kg: kilogram, kilograms
    g: gram, grams
    mg: milligram, milligrams
    lb lbs: pound, pounds
    oz: ounce, ounces
    l L: liter, liters
    ml mL: milliliter, milliliters
    m² m2: square meter, square meters
    km² km2: square kilometer, square kilometers
    m³ m3: cubic meter, cubic meters
    °C ℃: degree Celsius, degrees Celsius
    °F ℉: degree Fahrenheit, degrees Fahrenheit
    °: degree, degrees
    h hr hrs: hour, hours
    min mins: minute, minutes
    s sec secs: second, seconds
    ms: millisecond, milliseconds
    mph: mile per hour, miles per hour
    kph kmh: kilometer per hour, kilometers per hour
    KB kB: kilobyte, kilobytes
    MB: megabyte, megabytes
    GB: gigabyte, gigabytes
    TB: terabyte, terabytes
    kbps: kilobit per second, kilobits per second
    Mbps: megabit per second, megabits per second
    Gbps: gigabit per second, gigabits per second
    Hz: hertz
    kHz: kilohertz
    MHz: megahertz
    GHz: gigahertz
    W: watt, watts
    kW: kilowatt, kilowatts
    MW: megawatt, megawatts
    kWh: kilowatt hour, kilowatt hours
    V: volt, volts
    mA: milliamp, milliamps
    mAh: milliamp hour, milliamp hours
    dB: decibel, decibels
    hp: horsepower
    kcal cal: calorie, calories
    px: pixel, pixels
    fps: frame per second, frames per second
    rpm: revolution per minute, revolutions per minute
    x ×: time, times
    in.: inch, inches
"""
CURRENCIES = """
    $ US$ USD: dollar, dollars / cent, cents
    € EUR: euro, euros / cent, cents
    £ GBP: pound, pounds / penny, pence
    ¥ JPY: yen
    ₹ INR: rupee, rupees / paisa, paise
    ₩ KRW: won
    ₽ RUB: ruble, rubles / kopek, kopeks
    C$ CAD: Canadian dollar, Canadian dollars / cent, cents
    A$ AUD: Australian dollar, Australian dollars / cent, cents
    CHF: Swiss franc, Swiss francs / centime, centimes
    CNY RMB: yuan
    ₿ BTC: bitcoin, bitcoins
    ¢: cent, cents
"""
ABBREVIATIONS = """
    Mr. Mr: mister
    Mrs. Mrs: missus
    Ms. Ms: miz
    Prof. Prof: professor
    Jr. Jr: junior
    Sr. Sr: senior
    vs. vs v.: versus
    etc. etc: et cetera
    e.g.: for example
    i.e.: that is
    approx. ca.: approximately
    Inc. Inc: incorporated
    Ltd. Ltd: limited
    Corp.: corporation
    Co.: company
    Dept. dept.: department
    Ave. Ave: avenue
    Blvd. Blvd: boulevard
    Rd.: road
    Mt. Mt: mount
    Ft.: fort
    Gen.: general
    Col.: colonel
    Sgt. Sgt: sergeant
    Capt.: captain
    Lt.: lieutenant
    Rev.: reverend
    Gov.: governor
    Sen.: senator
    Rep.: representative
    Pres.: president
    est.: estimated
    min.: minutes
    max.: maximum
    a.m. a.m: a m
    p.m. p.m: p m
    w/: with
    w/o: without
    U.S.: U S
    U.K.: U K
    U.N.: U N
    E.U.: E U
    U.S.A.: U S A
    D.C.: D C
    Ph.D. PhD: P H D
    Jan.: January
    Feb.: February
    Mar.: March
    Apr.: April
    Aug.: August
    Sept. Sep.: September
    Oct.: October
    Nov.: November
    Dec.: December
    Mon.: Monday
    Tue. Tues.: Tuesday
    Wed.: Wednesday
    Thu. Thurs.: Thursday
    Fri.: Friday
    Sat.: Saturday
    Sun.: Sunday
"""
